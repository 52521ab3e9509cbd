"""Why a package of a vendor cannot be loaded: which library is missing, what it belongs to, and what brings it."""

from __future__ import annotations

import re

__all__ = ["advice", "missing_library", "reason"]

_MISSING = re.compile(r"(\S+\.so[.\d]*): cannot open shared object file")

# The first part of a library's name -> what brings it. The last line stands for all other libraries of CANN.
_BRINGS = {
    "libascend_hal": "install the driver, or set its environment (source .../Ascend/driver/bin/setenv.bash)",
    "libdcmi": "install the driver, or set its environment (source .../Ascend/driver/bin/setenv.bash)",
    "libatb": "load NNAL's environment (source .../Ascend/nnal/atb/set_env.sh), which comes after CANN's",
    "libcuda": "install the driver of the GPU, or let the container have it",
    "libpython": "install the shared library of this Python",
    "": "load CANN's environment (source .../Ascend/ascend-toolkit/set_env.sh), or install CANN",
}


def missing_library(error: BaseException | str) -> str:
    """The file name of the library that could not be found; "" where the error is about something else.

    Example:
        >>> missing_library("libhccl.so: cannot open shared object file: No such file or directory")
        'libhccl.so'
    """
    found = _MISSING.search(str(error))
    return found[1].rpartition("/")[2] if found else ""


def reason(error: BaseException) -> str:
    """One line, without a full stop, that says why; a missing library is named first."""
    library = missing_library(error)
    if library:
        return f"{library} is missing"
    text = " ".join(str(error).split()).partition(" [ERROR] ")[0].rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def advice(error: BaseException) -> str:
    """What to do about it, as a sentence without capital and full stop."""
    library = missing_library(error)
    if not library:
        return "mend or remove the package that fails"
    return next(text for start, text in _BRINGS.items() if library.startswith(start))

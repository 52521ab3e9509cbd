"""Diagnosis of a vendor's package that cannot be loaded: the missing library, its owner, and its source.

Called wherever an import of torch or torch_npu fails: `device.npu`, `device.torch_import`, `device.doctor`,
`cli.launch.detect`. The texts that are searched are those of the loader (glibc), Python and torch_npu; the owner of a
library is in software.toml. Tests: tests/device/test_device_ascend.py.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

__all__ = ["advice", "codes", "missing_library", "missing_module", "reason"]

_MISSING = re.compile(r"(\S+\.so[.\d]*)(?:: cannot open shared object file| is missing)")
_CODE = re.compile(r"\d{6}|E[0-9A-Z]+")
_NO_MODULE = re.compile(r"No module named '([\w.]+)'")
_USUAL = {
    "CANN": ".../Ascend/ascend-toolkit/set_env.sh",
    "NNAL": ".../Ascend/nnal/atb/set_env.sh",
    "driver": ".../Ascend/driver/bin/setenv.bash",
}


def missing_library(error: BaseException | str) -> str:
    """The file name of the library that could not be found; "" where the error is about something else.

    Example:
        >>> missing_library("libhccl.so: cannot open shared object file: No such file or directory")
        'libhccl.so'
    """
    found = _MISSING.search(str(error))
    return found[1].rpartition("/")[2] if found else ""


def reason(error: BaseException | str) -> str:
    """Return the reason in one line, without a full stop; a missing library first. A text starts with its type."""
    library = missing_library(error)
    if library:
        return f"{library} is missing"
    text = " ".join(str(error).split()).partition(" [ERROR] ")[0].rstrip(".")
    if isinstance(error, str):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def advice(error: BaseException | str, root: Path = Path("/")) -> str:
    """Advice, as a sentence without capital and full stop.

    Args:
        error: what was raised, or its text.
        root: where the machine's files begin; another folder in tests.
    """
    from toprope.device.host import software

    library = missing_library(error)
    if not library:
        return _advice_without_library(error)
    package = software.package_of(library)
    if not package:
        return f"install what has {library}, or name its folder in LD_LIBRARY_PATH"
    installed = next((each for each in software.find(root, os.environ) if each.name == package), None)
    name = "the driver" if package == "driver" else package
    script = installed.set_env if installed is not None else ""
    load = f"load the environment of {name} (source {script or _USUAL[package]})"
    return load if script else f"{load}, or install {name}"


def missing_module(error: BaseException | str) -> str:
    """The Python module that could not be found, where it is not a part of torch_npu itself; "" otherwise.

    Example:
        >>> missing_module("ModuleNotFoundError: No module named 'yaml'")
        'yaml'
    """
    found = _NO_MODULE.search(str(error))
    return found[1] if found and found[1].partition(".")[0] != "torch_npu" else ""


def codes(error: BaseException | str) -> tuple[str, ...]:
    """The vendor's codes in a message, such as "507008" and "EZ1001", in their order."""
    from toprope.codes import in_text

    found = (each.code for each in in_text(str(error)))
    return tuple(code for code in found if _CODE.fullmatch(code))


def _advice_without_library(error: BaseException | str) -> str:
    """Advice for an import that failed for another reason than a missing library."""
    module = missing_module(error)
    if module:
        return f"install the Python package that has the module {module}"
    if "undefined symbol" in str(error):
        return "install the release of it that was built for this torch"
    found = [code for code in codes(error) if not code.startswith("ERR")]  # torch_npu's own say which part failed
    if found:
        return f"see `toprope doctor {' '.join(found)}`"
    return "see `toprope doctor`, or fix or remove the package that fails"

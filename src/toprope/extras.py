"""How to install the libraries of an extra, such as `images`, for the way in which this toprope is installed.

Used in the `do:` of errors about missing packages. The names of extras are those of pyproject.toml; direct_url.json is
PEP 610's. The rule to keep: never advise an index for a package called toprope, a name that is not this project's
there. Tests: tests/base/test_extras.py.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

from toprope.errors import PackageError

__all__ = ["advice", "explained"]

_CHECKOUT = Path(__file__).resolve().parents[2]
_EXTRA = re.compile(r"extra\s*==\s*['\"]([\w-]+)['\"]")


def advice(extra: str) -> str:
    """The command that installs the libraries of an extra, ready to paste, without a full stop.

    In a checkout it installs toprope again with the extra; for an installed wheel it names the wheel's file, where pip
    recorded one (PEP 610) that is still there, else the libraries themselves. It never asks a public index for a
    package named toprope: that name is not this project's there.

    Args:
        extra: a key of `[project.optional-dependencies]` in pyproject.toml.
    """
    if (_CHECKOUT / "pyproject.toml").is_file() and (_CHECKOUT / "src" / "toprope" / "extras.py").is_file():
        return f"pip install -e '.[{extra}]' in {_CHECKOUT}"
    try:
        installed = metadata.distribution("toprope")
    except metadata.PackageNotFoundError:
        return f"install toprope with its extra {extra}"
    origin = json.loads(installed.read_text("direct_url.json") or "{}").get("url", "")
    file = Path(unquote(urlsplit(origin).path))
    if origin.startswith("file:") and file.exists():
        return shlex.join(["pip", "install", f"{file}[{extra}]"])
    rows = (each.partition(";") for each in installed.requires or ())
    wanted = [name.strip() for name, _, marker in rows if extra in _EXTRA.findall(marker)]
    return shlex.join(["pip", "install", *wanted])


def explained(error: ModuleNotFoundError, user: str) -> ModuleNotFoundError | PackageError:
    """The error that says how to get torch, where an import failed for want of it; any other error as it is.

    Args:
        error: from the import.
        user: what needs torch, such as "the simulated card".
    """
    if error.name != "torch":
        return error
    return PackageError(f"{user} needs torch, which is not installed.", sys.executable, advice("torch"))

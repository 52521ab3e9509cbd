"""Installed software: torch_npu and other Python packages, and the vendor's packages: libraries, folders, scripts.

Called by `device.doctor`, `cli.run` and `device.npu`. What is looked for is listed in software.toml next to it, with
sources: a new library or package is a row there. toprope's own stand-in of torch_npu must never count as the vendor's.
Tests: tests/device/test_doctor.py, tests/device/test_doctor_collect.py.
"""

from __future__ import annotations

import functools
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from importlib.machinery import PathFinder
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from toprope.device.host.machine import Package

__all__ = [
    "find",
    "installed",
    "installed_version",
    "needed_python",
    "node_names",
    "package_of",
    "variables_of",
]

DEFAULT = "usr/local/Ascend"
"""Folders in which the vendor installs, below the root."""

_VERSION = re.compile(r"^\s*version\s*=\s*(\S+)", re.IGNORECASE | re.MULTILINE)
_RUNNING = re.compile(r"^\w*running_version\s*=\s*\[[^:\]]*:([^\]]+)\]", re.MULTILINE)


def installed(names: tuple[str, ...], path: list[str]) -> dict[str, str]:
    """The versions of those of these distributions that lie in these folders. toprope's stand-ins lie in none."""
    found = {}
    for name in names:
        distribution = next(iter(distributions(name=name, path=path)), None)
        if distribution is not None:
            found[name] = distribution.version or "not known"
    return found


def installed_version() -> str | None:
    """Version of the installed torch_npu, "" where it does not say; None where there is none.

    toprope's stand-in of this name does not count, and neither does a mere folder.
    """
    found = next(iter(distributions(name="torch-npu", path=sys.path)), None)
    if found is not None:
        return found.version or ""
    loaded = sys.modules.get("torch_npu")
    if loaded is not None and not hasattr(loaded, "__toprope__"):
        return str(getattr(loaded, "__version__", ""))
    spec = PathFinder.find_spec("torch_npu")
    return None if spec is None or spec.origin is None else ""


def package_of(library: str) -> str:
    """The package that a library belongs to: "CANN", "NNAL" or "driver"; empty where it is none of these.

    Example:
        >>> package_of("libhccl.so"), package_of("libatb.so"), package_of("libc.so.6")
        ('CANN', 'NNAL', '')
    """
    fits = [start for start in _table()["libraries"] if library.startswith(start)]
    return str(_table()["libraries"][max(fits, key=len)]["package"]) if fits else ""


def variables_of(package: str) -> tuple[str, ...]:
    """The variables that show that the environment of a package is loaded; any of them does."""
    return tuple(_table()["packages"][package]["loaded_by"])


def needed_python() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Python packages that CANN imports: those that operators fail without, and the others of the vendor's list."""
    python = _table()["python"]
    return tuple(python["needed"]), tuple(python["listed"])


def node_names() -> tuple[str, tuple[str, ...]]:
    """Return the prefix of cards' device files, and the names of the files that all cards share."""
    nodes = _table()["nodes"]
    return str(nodes["card"]), tuple(nodes["shared"])


def find(root: Path, environment: Mapping[str, str]) -> tuple[Package, ...]:
    """The packages that are there, below the vendor's folder, the user's, and those that variables name.

    Args:
        root: "/" of the machine.
        environment: the variables of the process that is looked at.
    """
    found: list[Package] = []
    for name, table in _table()["packages"].items():
        for base in dict.fromkeys(_bases(root, environment)):
            script = next(_matches(base, table["set_env"]), None)
            files = list(_matches(base, table["version"]))
            if script is None and not files:
                continue
            version = next((text for file in files if (text := _version(file))), "")
            folder = script.parent if script is not None else files[0].parent
            found.append(Package(name, version, str(folder), "" if script is None else str(script)))
            break
    return tuple(found)


def _bases(root: Path, environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield the folders in which the vendor's packages are looked for, the usual ones first."""
    yield root / DEFAULT
    if environment.get("HOME"):
        yield Path(environment["HOME"], "Ascend")
    for variable in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "ATB_HOME_PATH"):
        path = environment.get(variable, "")
        if _is_absolute(path):
            # .../Ascend/ascend-toolkit/latest, .../Ascend/cann, .../Ascend/nnal/atb/latest/atb/cxx_abi_1
            yield from list(Path(path).parents)[:5]
    try:
        text = (root / "etc/ascend_install.info").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for match in re.finditer(r"^Driver_Install_Path_Param\s*=\s*(/\S+)", text, re.MULTILINE):
        yield root / match[1].lstrip("/")


def _is_absolute(path: str) -> bool:
    return path.startswith("/") and path.strip("/") != ""


def _matches(base: Path, patterns: list[str]) -> Iterator[Path]:
    for pattern in patterns:
        try:
            yield from sorted((path for path in base.glob(pattern) if path.is_file()), reverse=True)
        except OSError:
            continue  # a folder that may not be read


def _version(file: Path) -> str:
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    match = _VERSION.search(text) or _RUNNING.search(text)
    return match[1] if match else ""


@functools.cache
def _table() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("software.toml").read_text(encoding="utf-8"))

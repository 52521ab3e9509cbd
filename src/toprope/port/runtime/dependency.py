"""toprope as a requirement of ported code: which list of the project has to name it.

Called by `cli.port` after a port without `--vendor`. Tests: tests/port/test_port_reported.py,
tests/port/test_port_unseen_second.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

from toprope.port.file import RUNTIME
from toprope.port.files import FileKind, kind_of
from toprope.port.finding import Ported

__all__ = ["missing_requirement"]

_LISTS = (FileKind.REQUIREMENTS, FileKind.PROJECT, FileKind.ENVIRONMENT)
_NAMED = re.compile(rb"(?<![\w.-])toprope(?![\w.-])")
_ASKS = re.compile(rb"install_requires|dependencies|\[packages\]")
"""Words of a list of requirements; a setup.cfg may have the settings of tools alone."""
_IMPORTS = RUNTIME.rpartition(".")[0].encode()


def missing_requirement(files: Sequence[Ported]) -> str:
    """Say where toprope must be added, as a line for the report; "" where nothing imports it, or a list names it.

    The list nearest to the top is named, one of requirements before the others.

    Args:
        files: all files of the port.
    """
    if not any(_IMPORTS in each.after and kind_of(each.path) not in (None, *_LISTS) for each in files):
        return ""
    lists = [
        (each, kind) for each in files
        if (kind := kind_of(each.path)) in _LISTS and (kind is not FileKind.PROJECT or _ASKS.search(each.before))
    ]  # fmt: skip
    if any(_NAMED.search(_entries(each.before)) for each, _ in lists):
        return ""
    if not lists:
        return "  requires   toprope, which ported code imports: install it with the program, or port with --vendor"
    first, _ = min(lists, key=lambda each: (len(PurePath(each[0].path).parts), _LISTS.index(each[1]), each[0].path))
    return f"  requires   toprope, which ported code imports: add it to {first.path}, or port with --vendor"


def _entries(data: bytes) -> bytes:
    """A list without the names of tables, such as [tool.toprope.port], and without comments."""
    return re.sub(rb"^\s*(?:\[tool\.[^\n]*|#[^\n]*)$", b"", data, flags=re.M)

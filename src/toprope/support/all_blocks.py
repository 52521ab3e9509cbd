"""Kernels that need all of their blocks at once; the data with their sources are in all_blocks.toml."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["needs_all_blocks"]


def needs_all_blocks(kind: str, name: str = "") -> bool:
    """Return True if all_blocks.toml lists the kernel as one that needs all of its blocks at the same time.

    Args:
        kind: the operator's type, such as "NonZero".
        name: the kernel's name, for kernels whose type says less.
    """
    return any(
        row["sync_all"] and any(_is_kind(each, row["kind"]) for each in (kind, name) if each)
        for row in _read("all_blocks.toml")["operator"]
    )


def _is_kind(name: str, kind: str) -> bool:
    """Return True if a name means this kind: torch's "npu_moe_distribute_combine_v2" means MoeDistributeCombineV2."""
    return fnmatchcase(name, kind) or name.replace("_", "").casefold().removeprefix("npu") == kind.casefold()


@cache
def _read(file: str) -> dict[str, Any]:
    import tomllib  # not needed by those who only import the package

    return tomllib.loads((Path(__file__).parent / file).read_text(encoding="utf-8"))

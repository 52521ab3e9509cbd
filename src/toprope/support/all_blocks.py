"""Kernels that need all of their blocks at once, by the profiler's names; pure, from all_blocks.toml.

toprope.cores asks it when it reads a graph, a profile or a schedule: such kernels can deadlock under core limits. For a
kernel without a row the answer is None, and the checker assumes the worst: keep it so, or proofs of safety are wrong.
Names are the vendor's; a new kernel is a row of the table. Tests: tests/cores/test_cores_record_csv.py,
tests/cores/test_cores_record.py.
"""

from __future__ import annotations

import tomllib
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources

__all__ = ["communicates", "needs_all_blocks"]


@cache
def needs_all_blocks(kind: str, name: str = "", core: str = "") -> bool | None:
    """Return whether a kernel needs all of its blocks at the same time; None if no source says it.

    Args:
        kind: the operator's type, such as "NonZero", or torch's name, such as "npu_moe_distribute_combine_v2".
        name: the kernel's name, for kernels whose type says less.
        core: the profiler's word for its cores; blocks of a "MIX_AIV" kernel wait for each other.
    """
    exact, patterns = _table()
    words = [_folded(each) for each in (kind, name) if each]
    found = [exact.get(each) for each in words]
    if True in found or core == "MIX_AIV" or any(fnmatchcase(each, pattern) for each in words for pattern in patterns):
        return True
    return False if found and found[0] is False else None


@cache
def communicates(kind: str) -> bool:
    """Return True if a kernel waits for its peers on other cards, as MC2's do: "MatmulAllReduce".

    HCCL's own kernels are none of them: each belongs to a collective that the profiler lists.
    """
    exact, patterns = _table(communicating=True)
    name = _folded(kind)
    return name in exact or any(fnmatchcase(name, pattern) for pattern in patterns)


def _folded(name: str) -> str:
    return name.replace("_", "").casefold().removeprefix("aclnn").removeprefix("npu")


@cache
def _table(communicating: bool = False) -> tuple[dict[str, bool], tuple[str, ...]]:
    """Facts by name, and the patterns of names that need all of their blocks; of all kernels or of MC2's."""
    text = resources.files("toprope.support").joinpath("all_blocks.toml").read_text(encoding="utf-8")
    exact: dict[str, bool] = {}
    patterns: list[str] = []
    for row in tomllib.loads(text)["operator"]:
        for kind in row["kinds"].split() if row.get("communicates", False) or not communicating else ():
            if "*" in kind:
                patterns.append(_folded(kind))
            else:
                exact[_folded(kind)] = row["sync_all"] or exact.get(_folded(kind), False)
    return exact, tuple(patterns)

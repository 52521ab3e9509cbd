"""Comparison with the version of CANN whose rules apply, where they differ between versions.

aclgraph.py and ge.py ask it. The version is the setting `cann` (TOPROPE_CANN). Tests:
tests/sim/simulated/test_graph.py.
"""

from __future__ import annotations

from toprope.settings import Settings

__all__ = ["at_least"]


def at_least(major: int) -> bool:
    """Return True if the rules are those of this main version or a later one."""
    return int(Settings.load().cann.partition(".")[0]) >= major

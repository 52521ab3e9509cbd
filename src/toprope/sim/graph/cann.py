"""The version of CANN whose rules count, where versions differ: the setting `cann` (TOPROPE_CANN)."""

from __future__ import annotations

from toprope.settings import Settings

__all__ = ["at_least"]


def at_least(major: int) -> bool:
    """Return True if the rules are those of this main version or a later one."""
    return int(Settings.load().cann.partition(".")[0]) >= major

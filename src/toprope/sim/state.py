"""The `SimSpec` of the cards that are installed in this process, None where there are none.

installer.py sets it; all of toprope.sim asks it. Tests: tests/sim/test_sim_install.py.
"""

from __future__ import annotations

from toprope.sim.spec import SimSpec

__all__ = ["installed", "set_installed"]

_spec: SimSpec | None = None


def installed() -> SimSpec | None:
    """The simulated cards of this process, None where there are none."""
    return _spec


def set_installed(spec: SimSpec) -> None:
    """Record that these cards are installed, for the rest of the process."""
    global _spec
    _spec = spec

"""The simulated cards of this process."""

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

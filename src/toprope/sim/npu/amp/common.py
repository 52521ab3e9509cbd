"""Whether mixed precision makes sense, as torch asks for CUDA."""

from toprope.sim.npu.devices import is_available

__all__ = ["amp_definitely_not_available"]


def amp_definitely_not_available() -> bool:
    """Whether there is no card to compute on."""
    return not is_available()

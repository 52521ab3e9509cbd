"""Module `torch.npu.amp.common`: torch_npu's counterpart of torch.cuda.amp.common.

Tests: tests/compat/test_compat_torch_npu.py, for the name.
"""

from toprope.sim.npu.devices import is_available

__all__ = ["amp_definitely_not_available"]


def amp_definitely_not_available() -> bool:
    """Return True where there is no card to compute on."""
    return not is_available()

"""Facade module: registration of the card with torch.compile under torch_npu's name.

toprope.sim.inductor registers the card when it is installed, so nothing is left to do here. Tests:
tests/compat/test_torch_npu_utils.py.
"""

from __future__ import annotations

__all__: list[str] = []


def _dynamo_register_interface_for_device() -> None:
    """Register the card with torch._dynamo, which loading that part of it does."""

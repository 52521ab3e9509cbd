"""What torch.compile knows of the card: under torch_npu's name, the registration that toprope makes with the card."""

from __future__ import annotations

__all__: list[str] = []


def _dynamo_register_interface_for_device() -> None:
    """Register the card with torch._dynamo, which loading that part of it does."""

"""Choose the dtype in which a model is loaded, and a safer one if its numbers overflow.

`read_dtype` is called when the engine is opened, `safer_dtype` by `images.pipeline_manager` after a bad result. What
works is what `toprope.device` has probed, not a table. The names are values of `--dtype`. Tests:
tests/images/test_images_engine.py, tests/images/simulated/test_images_engine.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from toprope.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    import torch

    from toprope.device import Device

__all__ = ["DTYPES", "read_dtype", "safer_dtype"]

DTYPES = {
    "bf16": "bfloat16", "fp16": "float16", "fp32": "float32",
    "bfloat16": "bfloat16", "float16": "float16", "float32": "float32",
}  # fmt: skip
"""Names of dtypes for users, with torch's names."""


def read_dtype(dtype: str | torch.dtype, device: Device) -> torch.dtype:
    """Find a dtype by its name, and check that it works on the device.

    Args:
        dtype: "auto" for the best that works; "bf16", "fp16", "fp32", torch's own names, or a torch.dtype.
        device: the device on which it is tried.

    Raises:
        UsageError: the dtype is unknown.
        UnsupportedError: it does not work on the device.
    """
    import torch

    if dtype == "auto":
        return device.best_dtype()
    name = DTYPES.get(str(dtype).removeprefix("torch."))
    if name is None:
        raise UsageError(f"{dtype!r} is no dtype for a model.", do="give auto, bf16, fp16 or fp32")
    found: torch.dtype = getattr(torch, name)
    probe = device.probe(found)
    if not probe.works:
        raise UnsupportedError(
            f"{device} does not compute in {name}.",
            looked_at=f"{probe.failed or 'not tried'}: {probe.reason}",
            do=f"use {str(device.best_dtype()).removeprefix('torch.')}, or auto",
        )
    return found


def safer_dtype(dtype: torch.dtype, device: Device) -> torch.dtype | None:
    """Return float32 for a shorter dtype if the device computes in it; None if there is nothing safer."""
    import torch

    if dtype == torch.float32 or not device.probe(torch.float32).works:
        return None
    return torch.float32

"""Checks that a machine has what a mode needs, and the errors if it has not.

Called by `modes.switch` when a mode is enabled, before torch's hooks are registered. Tests:
tests/tiers/test_tiers_modes.py.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

import torch

from toprope.device import Device, FallbackWarning
from toprope.errors import ModeUnavailable
from toprope.settings import Settings
from toprope.tiers.modes.budgets import Room
from toprope.tiers.store.disk_file import can_be_written, check_folder, is_memory

__all__ = ["folder_of", "refuse", "why_not_mixed"]


def refuse(mode: str, reasons: Mapping[str, str], fallback: bool) -> None:
    """Raise for effects that a mode cannot have here, or warn once if it may go on without them.

    Raises:
        ModeUnavailable: it may not go on without them.
    """
    what = {
        "quantise": "multiplying quantised weights is not faster here",
        "mixed": "the device does not multiply bf16",
        "offload": "there is nowhere to move activations to",
    }
    listed = "; ".join(f"{what[each]} ({why})" for each, why in reasons.items())
    if not fallback:
        raise ModeUnavailable(
            f"the {mode or 'asked'} mode is not available: {' and '.join(what[each] for each in reasons)}.",
            looked_at="; ".join(reasons.values()),
            do="use another mode, or let it go on without this: TOPROPE_FALLBACK=1",
        )
    warnings.warn(f"the {mode or 'asked'} mode goes on without what is not available: {listed}", FallbackWarning, 4)


def why_not_mixed(device: Device) -> str:
    """Reason why a device cannot multiply bf16; "" if it can."""
    refused = device.refuses(torch.bfloat16)
    if refused:
        return refused
    if not torch.amp.is_autocast_available(device.torch_device.type):
        return f"torch has no autocast for {device.kind}"
    found = device.probe(torch.bfloat16)
    return "" if found.works else found.reason or f"bf16 fails on {device}"


def folder_of(room: Room) -> Path | None:
    """Folder for a file: the configured one, else toprope's cache directory; None if that is in memory or read-only."""
    if room.folder is not None:
        check_folder(Path(room.folder))
        return Path(room.folder)
    folder = Settings.load().cache_dir / "tiers"  # made when something is written there
    return None if is_memory(folder) or not can_be_written(folder) else folder

"""Memory budgets of a mode: from a configuration, from TOPROPE_DEVICE_MEMORY, or the free memory. Pure.

`modes.switch` reads them when a mode is enabled, `modes.models` asks for each model's bytes. A size is absolute. A
percentage is a part of the model's needs in this run: its weights, and in training its gradients and two optimizer
states for each weight that trains, as for Adam (the optimizer is not known before its first step). The spellings are
public (docs/tiers.md), and those of `vgpu_config` are APT-Transformer's. Tests: tests/tiers/test_tiers_modes.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from toprope.errors import SettingError, SizeError, UsageError
from toprope.sizes import parse_size
from toprope.tiers.plan.budgets import folder_and_limit

__all__ = ["VARIABLE", "Budget", "Needs", "Room", "read_room"]

VARIABLE = "TOPROPE_DEVICE_MEMORY"
"""Variable with the device's budget: a size such as "16GB", or a percentage such as "25%"."""

_STATES = 2
_PERCENTAGE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*")
_MIB = 2**20
_KEYS = {"levels", "device", "host", "disk"}


@dataclass(frozen=True)
class Needs:
    """Bytes that a model needs in a run.

    Attributes:
        weights: bytes of the parameters, tied ones once.
        trained: bytes of the parameters that train.
    """

    weights: int
    trained: int

    def total(self, training: bool) -> int:
        """Weights; in training also gradients and states."""
        return self.weights + ((1 + _STATES) * self.trained if training else 0)


@dataclass(frozen=True)
class Budget:
    """Budget of the device: bytes, a share of a model's needs, or, with neither, the free memory.

    Attributes:
        size: the budget in bytes.
        share: the budget as a share of the needs; 1.0 is all of them.
        source: origin of the figure, such as the name of the variable.
    """

    size: int | None = None
    share: Fraction | None = None
    source: str = "what is free"

    @property
    def given(self) -> bool:
        """True if the user gave a budget."""
        return self.size is not None or self.share is not None

    def bytes_for(self, needs: int) -> int | None:
        """The budget in bytes for a model with these needs; None for the free memory."""
        return self.size if self.share is None else int(self.share * needs)

    @classmethod
    def read(cls, given: int | str, source: str) -> Budget:
        """A size, a percentage, or "auto".

        Raises:
            SizeError: it is none of them.
        """
        if isinstance(given, str):
            if given.strip().lower() == "auto":
                return cls(source=source)
            match = _PERCENTAGE.fullmatch(given)
            if match is not None:
                share = Fraction(match[1]) / 100
                if share <= 0:
                    raise SizeError(f"{given!r} is nothing.", do="give more than 0%")
                return cls(share=share, source=source)
        try:
            return cls(size=parse_size(given), source=source)
        except SizeError as error:
            raise SizeError(f"{given!r} is neither a size nor a percentage.", do=f"{error.do}; or 25%") from None


@dataclass(frozen=True)
class Room:
    """The budgets of a mode: device, host and disk.

    Attributes:
        device: budget of the device's memory.
        host: budget of the host's memory: a size, or "auto".
        folder: folder for a file with the weights that have no room elsewhere; None for toprope's cache directory.
        disk: limit of that file in bytes; None for the free bytes.
    """

    device: Budget = Budget()
    host: int | str = "auto"
    folder: str | None = None
    disk: int | None = None


def read_room(config: Mapping[str, Any] | None, environment: Mapping[str, str]) -> Room:
    """Read the budgets from a configuration, else from the variable; else they are the free memory.

    Args:
        config: {"device": "25%", "host": "64GB", "disk": "/folder" or "/folder:64GB"}, and the form of apt_model,
            {"levels": [{"capacity_mb": 2000, "device": "npu:0"}, {"capacity_mb": ..., "device": "cpu"}, {"device":
            "ssd", "path": ..., ...}]}: the first level is the device's, the next one on "cpu" the host's. The other
            keys take precedence over the levels.
        environment: the environment variables.

    Raises:
        UsageError: the configuration cannot be read.
        SettingError: the variable cannot be read.
    """
    config = {} if config is None else config
    unknown = sorted(set(config) - _KEYS)
    if unknown:
        raise UsageError(
            f"vgpu_config has no {', '.join(map(repr, unknown))}.", do=f"give {', '.join(map(repr, sorted(_KEYS)))}"
        )
    found = _levels(config.get("levels") or [])
    device = found.device
    if config.get("device") is not None:
        device = Budget.read(config["device"], "vgpu_config")
    elif not device.given and environment.get(VARIABLE, "").strip():
        try:
            device = Budget.read(environment[VARIABLE], VARIABLE)
        except SizeError as error:
            raise SettingError(error.what, looked_at=f"{VARIABLE}={environment[VARIABLE]}", do=error.do) from None
    host = config.get("host", found.host)
    if host != "auto":
        host = parse_size(host)
    folder, disk = found.folder, found.disk
    if config.get("disk") is not None:
        folder, disk = folder_and_limit(str(config["disk"]))
    return Room(device, host, folder, disk)


def _levels(rows: Any) -> Room:
    device, host, folder, disk = Budget(), "auto", None, None
    for number, row in enumerate(rows):
        try:
            capacity, name = row["capacity_mb"], str(row["device"]).strip().lower()
            size = capacity if isinstance(capacity, str) else max(1, int(capacity * _MIB))
        except (KeyError, TypeError, ValueError):
            return Room()  # TierStack reads the same levels, and reports what is wrong
        if number == 0 and name != "ssd":
            device = Budget.read(size, "vgpu_config")
        elif name == "ssd":
            folder, disk = row.get("path"), size if isinstance(size, int) else None
        elif name.partition(":")[0] == "cpu" and isinstance(size, int):
            host = size  # type: ignore[assignment]
    return Room(device, host, None if folder is None else str(folder), disk)

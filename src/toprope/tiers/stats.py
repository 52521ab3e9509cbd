"""The figures of a model whose weights come and go."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

__all__ = ["Stats"]


@dataclass(frozen=True)
class Stats:
    """What has happened since the model was attached, or since `Handle.reset_stats`.

    Attributes:
        steps: runs of the model.
        step_seconds: of the last run; in training from its beginning to the next one's.
        moved: bytes over each link: "disk_read" (from the disk itself), "page_cache", "disk_write", "host_to_device",
            "device_to_host".
        busy_seconds: of threads, by what they moved.
        waited_seconds: that modules waited for their weights.
        overlap: the part of the time of moving that nobody waited for, 0 to 1.
        ratio: `step_seconds` divided by the limit of the plan, 1.0 is as fast as can be; None before the first run.
        limit_seconds, predicted_seconds: of the plan.
        loads: of groups into slots.
        hits: uses whose group was in a slot, or on its way there.
        unexpected: loads that began only when they were needed.
        changed_orders: steps whose order was not the one expected.
        peak_bytes: by tier: "device" (what stays, and the slots), "host", "disk" (written to our own file).
        budget_bytes: by tier.
        training: figures of gradients, activations and optimizer states; empty where nothing trains.
    """

    steps: int
    step_seconds: float | None
    moved: dict[str, int]
    busy_seconds: dict[str, float]
    waited_seconds: float
    overlap: float
    ratio: float | None
    limit_seconds: float
    predicted_seconds: float
    loads: int
    hits: int
    unexpected: int
    changed_orders: int
    peak_bytes: dict[str, int]
    budget_bytes: dict[str, int]
    training: dict[str, int]

    def to_json(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self), indent=2)

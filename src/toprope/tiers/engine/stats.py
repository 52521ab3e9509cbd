"""Statistics of an attached model: bytes per link, times, hits, and where each figure comes from.

For users: `Handle.stats()` returns a `Stats`. The counters themselves are in the ring and the transfer threads; here
they are read. Names of fields are public. A new figure is a field of `Stats` with its source in `_sources`, and a line
of docs/tiers.md. Tests: tests/tiers/test_tiers_stats.py.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from toprope.tiers.engine.runtime import Engine
    from toprope.tiers.engine.training_tiers import Places
    from toprope.tiers.plan.model import Budgets, Plan
    from toprope.tiers.store.host import HostStore
    from toprope.tiers.training.training import Training

__all__ = ["Figures", "Stats"]

Source = Literal["measured", "profile", "estimate", "configured"]

LINKS = ("disk_read", "page_cache", "disk_write", "host_to_device", "device_to_host")


@dataclass(frozen=True)
class Stats:
    """Statistics since the model was attached, or since `Handle.reset_stats`.

    Attributes:
        steps: runs of the model.
        step_seconds: duration of the last run; in training from its begin to the begin of the next one.
        moved: bytes over each link: "disk_read" (from the disk itself), "page_cache", "disk_write", "host_to_device",
            "device_to_host"; weights, gradients, optimizer states and activations together.
        busy_seconds: busy time of the threads, by link; two transfers at the same time count twice.
        moving_seconds: time in which anything was moved; two transfers at the same time count once.
        waited_seconds: time that the program waited for transfers: modules for their weights, backward for
            activations, the optimizer for its tiles.
        overlap: the part of `moving_seconds` in which the program did not wait, 0 to 1; 1 if nothing moved.
        ratio: `step_seconds` divided by `limit_seconds`; 1.0 is the fastest possible, None before the first run. It is
            never less than 1: if a step was faster than the limit, the links were faster than in the plan.
        limit_seconds, predicted_seconds: as in the plan.
        loads: loads of groups into slots.
        hits: uses whose group was in a slot, or being loaded.
        unexpected: loads that began only when they were needed.
        changed_orders: steps with another order than expected.
        peak_bytes: peak use by tier: "device" (weights that stay, and the slots), "host" (with memory that is kept for
            the next tensor), "disk" (our own files).
        device_peak_bytes: peak of all allocations on a device with its own memory, since the peak was last reset; None
            for other devices.
        outside_bytes: the part of it above `peak_bytes["device"]`: computing, gradients, rounding by the allocator,
            other tensors.
        budget_bytes: budgets by tier; for "auto", the budget that was found.
        training: statistics of gradients, activations and optimizer states; empty if nothing trains.
        links: the speeds in the plan, in bytes a second, each with its source.
        sources: source of each figure above: "measured", "profile" (of a chip), "estimate" or "configured". A limit is
            as certain as the least certain link, or computing time, in it.
    """

    steps: int
    step_seconds: float | None
    moved: dict[str, int]
    busy_seconds: dict[str, float]
    moving_seconds: float
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
    device_peak_bytes: int | None
    outside_bytes: int | None
    budget_bytes: dict[str, int]
    training: dict[str, int]
    links: dict[str, dict[str, Any]]
    sources: dict[str, Source]

    def to_json(self) -> str:
        """The statistics as JSON."""
        return json.dumps(asdict(self), indent=2)


class Figures:
    """Collects the statistics of one model.

    Args:
        engine: the model's engine.
        host: its store in the host's memory.
    """

    def __init__(self, engine: Engine, host: HostStore) -> None:
        self._engine, self._host = engine, host
        self._device_peak = 0
        self._base: dict[str, Any] = {}

    def planned(self) -> None:
        """Update the device's peak; called when a plan is in effect."""
        assert self._engine.plan is not None
        taken = self._engine.plan.resident_bytes + sum(self._engine.slot_sizes)
        self._device_peak = max(self._device_peak, taken)

    def reset(self) -> None:
        """Start to count from zero."""
        self._base = self._counted()

    def _counted(self) -> dict[str, Any]:
        """The counters since the model was attached."""
        engine, transfers = self._engine, self._engine.transfers
        moved = Counter(transfers.moved)
        moved.update(engine.moved)
        return {
            "moved": moved, "busy": Counter(transfers.busy), "moving": transfers.clock.moving,
            "waited": transfers.clock.waited, "steps": engine.steps, "loads": engine.ring.loads,
            "hits": engine.ring.hits, "unexpected": engine.ring.unexpected, "missed": engine.missed,
        }  # fmt: skip

    def stats(
        self, times: Sequence[float], training: Training | None, places: Places | None, budgets: Budgets
    ) -> Stats:
        """The statistics so far.

        Args:
            times: seconds of the last runs.
            training: gradients, activations and optimizer states; None if nothing trains.
            places: the stores for training.
            budgets: the budgets of the model.
        """
        engine, base, now = self._engine, self._base, self._counted()
        plan = engine.plan
        assert plan is not None
        self.planned()
        since = {name: now[name] - base.get(name, 0) for name in now if name not in ("moved", "busy")}
        before, busy = base.get("moved", {}), base.get("busy", {})
        step = times[-1] if times else None
        moving, waited = since["moving"], since["waited"]
        peak = engine.device.max_memory_allocated() if engine.device.capabilities.separate_memory else None
        own_files = engine.migration.spilled_peak + (0 if places is None or places.disk is None else places.disk.peak)
        return Stats(
            steps=since["steps"],
            step_seconds=step,
            moved={name: now["moved"][name] - before.get(name, 0) for name in LINKS},
            busy_seconds={name: seconds - busy.get(name, 0.0) for name, seconds in now["busy"].items()},
            moving_seconds=moving,
            waited_seconds=waited,
            overlap=min(1.0, max(0.0, 1 - waited / moving)) if moving else 1.0,
            ratio=max(1.0, step / plan.limit_seconds) if step is not None and plan.limit_seconds else None,
            limit_seconds=plan.limit_seconds,
            predicted_seconds=plan.predicted_seconds,
            loads=since["loads"],
            hits=since["hits"],
            unexpected=since["unexpected"],
            changed_orders=since["missed"],
            peak_bytes={"device": self._device_peak, "host": self._host.peak, "disk": own_files},
            device_peak_bytes=peak,
            outside_bytes=None if peak is None else max(0, peak - self._device_peak),
            budget_bytes={"device": budgets.device, "host": budgets.host, "disk": budgets.disk or 0},
            training={} if training is None else training.stats(),
            links={name: asdict(link) for name, link in _links(plan).items()},
            sources=_sources(plan, traced=not engine.tracing),
        )


def _links(plan: Plan) -> dict[str, Any]:
    links = plan.links
    found = {
        "disk_read": links.disk_read, "disk_write": links.disk_write, "host_to_device": links.host_to_device,
        "device_to_host": links.device_to_host, "memory": links.memory,
    }  # fmt: skip
    return {name: link for name, link in found.items() if link is not None}


def _sources(plan: Plan, *, traced: bool) -> dict[str, Source]:
    """Source of each figure."""
    words = {link.word for name, link in _links(plan).items() if getattr(plan.traffic, name, 0)}
    if plan.links.unified:
        words.add(plan.links.memory.word)
    words.add("measured" if traced else "estimate")  # of computing: a guess, until a step was seen
    least: Source = next(word for word in ("estimate", "profile", "measured") if word in words)
    found: dict[str, Source] = {
        name: "measured" for name in Stats.__dataclass_fields__ if name not in ("links", "sources")
    }
    found |= {"budget_bytes": "configured", "limit_seconds": least, "predicted_seconds": least, "ratio": least}
    return found

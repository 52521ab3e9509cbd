"""Metrics of a graph's edges and stages, read from shared memory without a request to any process.

For users (`FlowGraph.metrics`) and for Prometheus (`service.prometheus`). Counters of edges are those of
`edge.ring_buffer`, those of stages of `stage.status`: a new one is added there first. The files' names
(`link-edge-source-target-process-generation`) are made by `edge.links` and `worker.process`. `drain` relies on `quiet`.
Tests: tests/flow/test_serve_parts.py, tests/flow/test_flow_run.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from toprope.flow.edge.ring_buffer import CELLS, DONE, SENT, TAKEN, RingBuffer
from toprope.flow.graph.nodes import DEPTH, Plan
from toprope.flow.stage.plan import StagePlan
from toprope.flow.stage.spec import StageFunction
from toprope.flow.stage.status import BOUNDS_NS, BUCKETS, MORE_INPUTS, TOTAL_NS

__all__ = ["EdgeMetrics", "RingCounters", "StageMetrics", "stage_metrics"]


@dataclass(frozen=True)
class EdgeMetrics:
    """One edge, all instances of its ends together.

    Attributes:
        source, target: names of the nodes; of the graph's input, or "fetch".
        output, input: which of the source's outputs and of the target's inputs.
        capacity: messages that it holds at most, for each pair of instances.
        depth: messages that wait in it.
        messages: sent so far.
        bytes: their payloads.
        waited_ms: what senders have waited for room.
        to_host: tensors that were copied from their card to the host for it.
        between: tensors that were copied from one card to another.
        shared: tensors on a card that were passed without a copy.
        lost: messages lost to OVERWRITE.
    """

    source: str
    output: int
    target: str
    input: int
    capacity: int
    depth: int
    messages: int
    bytes: int
    waited_ms: float
    to_host: int
    between: int
    shared: int
    lost: int


@dataclass(frozen=True)
class StageMetrics:
    """The calls of one function of one instance of a stage, processes that have died included.

    Attributes:
        stage: name of the node.
        function: its method; empty where it has one function only.
        instance: number of the instance.
        calls, inputs: calls so far, and their inputs: more than calls where inputs were batched.
        seconds: of all calls, without the time that results waited for room.
        buckets: (upper bound in seconds, calls that took at most that long), as Prometheus counts.
    """

    stage: str
    function: str
    instance: int
    calls: int
    inputs: int
    seconds: float
    buckets: tuple[tuple[float, int], ...]


def stage_metrics(figures: Iterable[tuple[StagePlan, StageFunction, Sequence[int]]]) -> list[StageMetrics]:
    """The calls of stages, from the cells of `toprope.flow.stage.status`."""
    found = []
    for plan, function, cells in figures:
        counts = list(itertools.accumulate(cells[BUCKETS:]))
        found.append(
            StageMetrics(
                plan.context.name, function.name if len(plan.spec.functions) > 1 else "", plan.context.instance_id,
                counts[-1], counts[-1] + cells[MORE_INPUTS], cells[TOTAL_NS] / 1e9,
                tuple((bound / 1e9, count) for bound, count in zip(BOUNDS_NS, counts, strict=False)),
            )
        )  # fmt: skip
    return found


class RingCounters:
    """Counters of a graph's ring buffers.

    Args:
        folder: where they lie.
        plan: the graph.
    """

    def __init__(self, folder: Path, plan: Plan) -> None:
        self._folder = folder
        self._plan = plan
        self._rings: dict[str, RingBuffer] = {}

    def _find_rings(self) -> None:
        for path in self._folder.glob("link-*"):
            if path.name not in self._rings:
                try:
                    self._rings[path.name] = RingBuffer(path, new=False)
                except (OSError, ValueError):
                    continue  # it is being made

    def quiet(self, living: Iterable[str]) -> int:
        """Number of messages that were sent, if all of them are done with; else -1. Twice the same number is a proof.

        Args:
            living: names of the processes that are there; what others have sent does not count.
        """
        self._find_rings()
        names = set(living)
        newest: dict[tuple[str, str], int] = {}
        for name in self._rings:
            link, sender, generation = _parse(name)
            newest[link, sender] = max(generation, newest.get((link, sender), 0))
        total = 0
        for name, ring in self._rings.items():
            link, sender, generation = _parse(name)
            if sender in names and generation == newest[link, sender]:
                sent = ring.cells[SENT]
                if sent != ring.cells[DONE]:
                    return -1
                total += sent
        return total

    def metrics(self) -> list[EdgeMetrics]:
        """Return the metrics of all edges."""
        self._find_rings()
        sums: list[dict[str, int]] = [dict.fromkeys((*CELLS, "depth"), 0) for _ in self._plan.edges]
        for name, ring in self._rings.items():
            row = sums[int(name.split("-")[1])]
            for place, cell in enumerate(CELLS):
                row[cell] += ring.cells[place]
            row["depth"] += max(0, ring.cells[SENT] - ring.cells[TAKEN])
        return [self._edge(number, row) for number, row in enumerate(sums)]

    def _edge(self, number: int, row: dict[str, int]) -> EdgeMetrics:
        edge, nodes = self._plan.edges[number], self._plan.nodes
        source = nodes[edge.source].name if edge.source >= 0 else self._plan.inputs[edge.output].name
        target = nodes[edge.target].name if edge.target >= 0 else "fetch"
        capacity = nodes[edge.target].depth if edge.target >= 0 else DEPTH
        return EdgeMetrics(
            source, edge.output if edge.source >= 0 else 0, target, edge.input, capacity, row["depth"], row["sent"],
            row["bytes"], row["waited_ns"] / 1e6, row["to_host"], row["between"], row["shared"], row["lost"],
        )  # fmt: skip


def _parse(name: str) -> tuple[str, str, int]:
    """Edge and instances, sender, and generation of a ring buffer's file name."""
    parts: Sequence[str] = name.split("-")
    return "-".join(parts[1:4]), "-".join(parts[4:-1]), int(parts[-1])

"""Plans that are sent to the processes of a graph: their stages, and the targets of their outputs; pure.

Made by `executor.placement` in the driver, read by `worker.process`. Both are the same version of toprope. Tests:
tests/flow/test_flow_far.py, tests/flow/test_serve_parts.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from toprope.flow.stage.spec import Batching, StageContext, StageSpec

__all__ = ["DRIVER", "Address", "HostPlan", "Reach", "Route", "StagePlan", "Target"]

DRIVER = "driver"
"""Name of the process that feeds and fetches."""


@dataclass(frozen=True)
class Target:
    """An instance that an output goes to.

    Attributes:
        host: name of its process; the sender's name for a neighbour in the same process.
        node, instance: which stage; the node is -1 for the driver.
        on_host: whether tensors have to leave their card on the way.
    """

    host: str
    node: int
    instance: int
    on_host: bool


@dataclass(frozen=True)
class Route:
    """An edge as its sender sees it: the targets of one output.

    Attributes:
        edge: its number in the plan of the graph.
        input: which input of the target it is.
        targets: the instances of the target; a transaction goes to one of them.
        depth, overwrites: see `FlowNode`.
        name: of the target, for messages.
    """

    edge: int
    input: int
    targets: tuple[Target, ...]
    depth: int
    overwrites: bool
    name: str


@dataclass(frozen=True)
class StagePlan:
    """An instance of a stage, as its process gets it.

    Attributes:
        node: its number in the plan of the graph.
        context: the stage's location.
        spec: what it runs.
        depth, overwrites: of its inputs.
        edges: for each input the number of its edge in the plan of the graph.
        batches: how messages of an input are batched, by input.
        align: limit, milliseconds and whether to drop, for inputs that are taken by transaction; None by order.
        routes: for each output where it goes.
        catches: whether exceptions of functions are reported to all stages.
        replies: see `RunOptions`.
        ends: names of the functions that end a stream of results, see `toprope.flow.graph.streams`.
    """

    node: int
    context: StageContext
    spec: StageSpec
    depth: int
    overwrites: bool
    edges: tuple[int, ...] = ()
    batches: dict[int, Batching] = field(default_factory=dict)
    align: tuple[int, int, bool] | None = None
    routes: tuple[tuple[Route, ...], ...] = ()
    catches: bool = False
    replies: bool = False
    ends: frozenset[str] = frozenset()


class Address(NamedTuple):
    """Address of a process for those on other machines.

    Attributes:
        node: the machine, as Ray knows it.
        host, port: where it listens.
    """

    node: str
    host: str
    port: int


@dataclass(frozen=True)
class Reach:
    """Data with which a process finds those on other machines.

    Attributes:
        secret: of the graph; it identifies the graph's processes.
        node: the driver's machine.
        host: its address.
    """

    secret: bytes = field(repr=False)
    node: str
    host: str


@dataclass(frozen=True)
class HostPlan:
    """One process of a graph: the stages in it, and the folder by which it finds the others.

    Attributes:
        name: of the process in the graph.
        folder: of the graph.
        stages: its stages.
        trace: whether to record its work.
        reach: how it finds processes on other machines; None where there are none.
    """

    name: str
    folder: str
    stages: tuple[StagePlan, ...]
    trace: bool = False
    reach: Reach | None = None

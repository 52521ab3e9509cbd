"""Base of both modes' compiled graphs: the operators with their attributes, and the graph that runs.

AclGraph and GeGraph extend it; `toprope.sim.graph.CompiledGraph` lets a program read what the backend made. Tests:
tests/sim/simulated/test_graph.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch.fx import GraphModule
from torch.fx.node import Node

from toprope.sim.air import scopes
from toprope.sim.air.operators import mark
from toprope.sim.composites import replayed
from toprope.sim.graph import runtime
from toprope.sim.graph.config import CompilerConfig

__all__ = ["CompiledGraph", "Operator", "operators"]

_count = itertools.count()


@dataclass(frozen=True)
class Operator:
    """An operator of a graph.

    Attributes:
        name: the node's, "add" or "add_1".
        target: the operator's, "aten.add.Tensor".
        attributes: what the scopes around it gave it; all values are text.
    """

    name: str
    target: str
    attributes: Mapping[str, str]


def operators(module: GraphModule) -> dict[Node, Operator]:
    """The operators of a graph in their order, by node.

    Raises:
        SimulatorError: a scope is entered and not left, or the other way round.
    """
    found = scopes.attributed(mark(node) or node for node in module.graph.nodes)
    return {
        each.node: Operator(each.node.name, str(each.node.target), dict(each.attributes))
        for each in found
        if each.node.op == "call_function"
    }


class CompiledGraph:
    """A graph that was compiled; calling it runs it.

    Attributes:
        name: "graph_1" and so on, counted in the process.
        phase: "inference", "forward" or "backward".
        module: the graph as it was traced, with the scopes as `torch.ops.air.scope_enter` and `scope_exit`.
        lowered: the graph that runs; None before the first run of one that is built then.
        nodes: the operators.
        options: options of the whole graph, such as "ge.aicoreNum".
    """

    def __init__(self, module: GraphModule, phase: str, config: CompilerConfig) -> None:
        self.name = f"graph_{next(_count)}"
        self.phase = phase
        self.module = module
        self.config = config
        self.options: dict[str, str] = {}
        self.lowered: GraphModule | None = None
        self._operators = operators(module)
        self._labels = sorted({each.attributes[scopes.STREAM_LABEL] for each in self.nodes if _is_switched(each)})

    @property
    def nodes(self) -> tuple[Operator, ...]:
        """The operators."""
        return tuple(self._operators.values())

    def __call__(self, *arguments: Any) -> Any:
        """Run the graph."""
        raise NotImplementedError

    def _run(self, arguments: tuple[Any, ...]) -> Any:
        """Run the graph; where that fails, streams and limits are as before."""
        assert self.lowered is not None
        with replayed(), runtime.restored_on_failure([runtime.stream_of_label(label) for label in self._labels]):
            return self.lowered(*arguments)


def _is_switched(operator: Operator) -> bool:
    return scopes.STREAM_LABEL in operator.attributes

"""The inputs and outputs of a graph as a service names and describes them; pure.

`service.app` makes them once; `bodies` checks requests by them, and `openapi` describes them. The names are what
clients send and get (docs/serve.md): a change breaks them. Tests: tests/flow/test_serve_app.py.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from toprope.flow.data_type import DType
from toprope.flow.graph.nodes import FlowData, Plan

__all__ = ["Input", "Ports", "ports_of"]


@dataclass(frozen=True)
class Input:
    """An input of the graph, as clients name it and what it accepts.

    Attributes:
        data: the graph's input.
        is_tensor: whether it takes tensors alone: a model takes it, or it has a schema.
        for_model: whether a model takes it, so that its tensors are torch's.
        dtype: that tensors must have; None for any.
        shape: that tensors must have; a negative number stands for any. None for any shape.
    """

    data: FlowData
    is_tensor: bool
    for_model: bool
    dtype: DType | None = None
    shape: tuple[int, ...] | None = None

    @property
    def name(self) -> str:
        """Its name."""
        return self.data.name

    @property
    def expected(self) -> str:
        """Description for people: "float32 [-1, 3, 8, 8]"."""
        if not self.is_tensor:
            return "any value"
        if self.dtype is None or self.shape is None:
            return "a tensor"
        name = self.dtype.torch or self.dtype.name
        return f"{name} {list(self.shape)}"


@dataclass(frozen=True)
class Ports:
    """The inputs and outputs of a graph.

    Attributes:
        inputs: by name.
        outputs: their names, in their order.
        is_stream: whether a request has several results.
        may_be_bytes: whether the only output can be bytes: no model makes it.
    """

    inputs: dict[str, Input]
    outputs: tuple[str, ...]
    is_stream: bool
    may_be_bytes: bool


def ports_of(plan: Plan, models: frozenset[int], is_stream: bool) -> Ports:
    """The ports of a graph.

    Args:
        plan: the graph.
        models: numbers of the nodes whose inputs are tensors on their device.
        is_stream: whether a request has several results.
    """
    inputs = {}
    for place, data in enumerate(plan.inputs):
        targets = {edge.target for edge in plan.edges if edge.source < 0 and edge.output == place}
        for_model, schema = not targets.isdisjoint(models), data.schema
        found = Input(data, for_model or schema is not None, for_model)
        if schema is not None:
            found = Input(data, True, for_model, schema.dtype, tuple(schema.shape))
        inputs[data.name] = found
    names = []
    for place in plan.order:
        output = plan.fetched[place]
        several = output.node.output_num > 1
        names.append(f"{output.node.deploy_name}.{output.index}" if several else output.node.deploy_name)
    counts: Counter[str] = Counter()
    outputs = []
    for name in names:
        outputs.append(f"{name}_{counts[name]}" if counts[name] else name)
        counts[name] += 1
    may_be_bytes = len(names) == 1 and plan.nodes.index(plan.fetched[plan.order[0]].node) not in models
    return Ports(inputs, tuple(outputs), is_stream, may_be_bytes)

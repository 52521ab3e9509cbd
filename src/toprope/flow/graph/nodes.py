"""Nodes, their wiring, and the plan of a graph; pure.

Users build graphs of `FlowData`, `FlowNode` and `FlowOutput`; `plan` makes the `Plan` that everything behind works on:
placement, runner, metrics, service. Any thread may build graphs. Fixed by CANN's dataflow API: the public classes and
methods, the attributes' names (`_flow_attr_...`), and the names of nodes, which deploy files use: the class's name,
then `_1`, `_2`, ... Instances are toprope's own, and so is the form of `Plan`. Tests: tests/flow/test_flow_graph.py,
tests/flow/test_flow_semantics.py.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from toprope.flow.data_type import TensorDesc
from toprope.flow.exceptions import DfException, DfTypeError
from toprope.flow.stage.spec import CountBatch, StageFunction, StageSpec, TimeBatch

__all__ = [
    "Edge",
    "FlowData",
    "FlowNode",
    "FlowOutput",
    "Plan",
    "check_instances",
    "forget_names",
    "plan",
    "unique_name",
]

DEPTH = 128
"""Default depth of an edge, in messages."""

_DEPTH, _POLICY, _FLOW = "_flow_attr_depth", "_flow_attr_enqueue_policy", "_flow_attr"
_POLICIES = ("FIFO", "OVERWRITE")
_MOST_INSTANCES = 256
_NODE = "node"

_log = logging.getLogger("toprope")
_lock = threading.Lock()
_names: dict[str, set[str]] = {}
_aliases: set[str] = set()


def check_instances(instances: Any) -> int:
    """The number of processes of a stage.

    Raises:
        DfTypeError: it is no int.
        DfException: it is out of range.
    """
    if type(instances) is not int:
        raise DfTypeError(f"instances must be an int, got {instances!r}")
    if not 1 <= instances <= _MOST_INSTANCES:
        raise DfException(f"instances must be 1 to {_MOST_INSTANCES}, got {instances}")
    return instances


def forget_names() -> None:
    """Restart the numbering of names, as `finalize` does."""
    with _lock:
        _names.clear()
        _aliases.clear()


def unique_name(name: str | None, default: str, space: str = "") -> str:
    """A unique name: the given one or the class's, with `_1`, `_2`, ... behind it if that is taken.

    Args:
        name: given by the user; None for none.
        default: name of the class.
        space: "node" for nodes, whose names and aliases are apart from those of everything else.

    Raises:
        DfTypeError: the name is no text.
    """
    if name is not None and not isinstance(name, str):
        raise DfTypeError(f"the name of a {default} must be a str, got {name!r}")
    wanted = name or default
    with _lock:
        taken = _names.setdefault(space, set())
        found, number = wanted, 0
        while found in taken or (space == _NODE and found in _aliases):
            number += 1
            found = f"{wanted}_{number}"
        taken.add(found)
    if name and number and space != _NODE:  # nodes are named by their functions, as often as they are used
        _log.warning("the name %s is taken, so this %s is called %s. do: give another name", name, default, found)
    return found


class FlowData:
    """An input of a graph, to which values are fed.

    Args:
        data_cls: `dataflow.Tensor`.
        schema: the description that tensors are held to, None for any.
        name: its name.

    Raises:
        DfException: of another class, or the schema is no TensorDesc.
    """

    def __init__(self, data_cls: Any = None, schema: TensorDesc | None = None, name: str | None = None) -> None:
        from toprope.flow.tensor import Tensor

        if data_cls is not None and data_cls is not Tensor:
            raise DfException(f"data_cls must be Tensor, got {data_cls!r}")
        if schema is not None and not isinstance(schema, TensorDesc):
            raise DfException(f"schema must be a TensorDesc, got {type(schema).__name__}")
        self.schema = schema
        self.name = unique_name(name, "FlowData")

    def __repr__(self) -> str:
        return f"<FlowData {self.name}>"


@dataclass(frozen=True)
class FlowOutput:
    """An output of a node, which other nodes take or the graph returns.

    Attributes:
        node: the node.
        index: which of its outputs.
    """

    node: FlowNode
    index: int


@dataclass
class _Mapped:
    """A process point's port that a node's port is mapped to."""

    index: int
    attrs: tuple[CountBatch | TimeBatch, ...] = ()


class FlowNode:
    """A stage of a graph: N inputs, M outputs, and the process point that computes them.

    Args:
        input_num: number of inputs.
        output_num: number of outputs.
        name: its name.

    Raises:
        DfTypeError: a number is no int, or the name no text.
        DfException: a number is negative.
    """

    def __init__(self, input_num: int, output_num: int, name: str | None = None) -> None:
        if type(input_num) is not int or type(output_num) is not int:
            raise DfTypeError(f"input_num and output_num must be int, got {input_num!r} and {output_num!r}")
        if input_num < 0 or output_num < 0:
            raise DfException(f"input_num and output_num must be at least 0, got {input_num} and {output_num}")
        self.input_num = input_num
        self.output_num = output_num
        self.name = unique_name(name, "FlowNode", _NODE)
        self.alias = ""
        self.attrs: dict[str, Any] = {_FLOW: True}
        self.point: Any = None
        self.inputs: tuple[FlowData | FlowOutput, ...] = ()
        self.input_maps: dict[int, _Mapped] = {}
        self.output_maps: dict[int, _Mapped] = {}
        self.balance = ""
        self.instances = 0

    def __call__(self, *inputs: FlowData | FlowOutput) -> Any:
        """Wire the inputs: None, one FlowOutput, or a tuple of them. A second call replaces the former inputs.

        Raises:
            DfException: another number of inputs, an argument of another type, or an output of the node itself.
        """
        if len(inputs) != self.input_num:
            raise DfException(f"{self.name} has {self.input_num} inputs, got {len(inputs)}")
        for each in inputs:
            self._check_input(each)
        self.inputs = inputs
        return self.outputs()

    def _check_input(self, each: Any) -> None:
        if not isinstance(each, FlowData | FlowOutput):
            raise DfException(f"an input of {self.name} must be FlowData or FlowOutput, got {type(each).__name__}")
        if isinstance(each, FlowOutput) and each.node is self:
            raise DfException(f"{self.name} cannot take its own output")

    def outputs(self) -> Any:
        """Its outputs: None, one FlowOutput, or a tuple of them."""
        found = tuple(FlowOutput(self, index) for index in range(self.output_num))
        return found[0] if len(found) == 1 else found or None

    def add_process_point(self, pp: Any) -> None:
        """Set the process point that the node runs.

        Raises:
            DfException: it runs something already, what is added is no process point, or a FlowGraphProcessPoint, which
                is for invoked closures.
        """
        if self.point is not None:
            raise DfException(f"{self.name} has a process point")
        if getattr(pp, "is_graph_of_nodes", False):
            raise DfException(
                "a FlowGraphProcessPoint cannot be a node's own: use FuncProcessPoint.add_invoked_closure"
            )
        if not callable(getattr(pp, "stage_spec", None)):
            raise DfException(f"{self.name} takes a GraphProcessPoint or FuncProcessPoint, got {type(pp).__name__}")
        self.point = pp

    def map_input(self, node_input_index: int, pp: Any, pp_input_index: int, input_attrs: Sequence[Any] = ()) -> None:
        """Map an input of the node to one of the process point; by default of the same number.

        Raises:
            DfException: there is no such input, the process point is another, or an attribute is no batching.
        """
        self._check_port(node_input_index, self.input_num, pp, self.input_maps, pp_input_index, "input")
        for each in input_attrs:
            if not isinstance(each, CountBatch | TimeBatch):
                raise DfException(
                    f"an attribute of an input must be TimeBatch or CountBatch, got {type(each).__name__}"
                )
        self.input_maps[node_input_index] = _Mapped(pp_input_index, tuple(input_attrs))

    def map_output(self, node_output_index: int, pp: Any, pp_output_index: int) -> None:
        """Map an output of the node to one of the process point; by default of the same number.

        Errors as of `map_input`.
        """
        self._check_port(node_output_index, self.output_num, pp, self.output_maps, pp_output_index, "output")
        self.output_maps[node_output_index] = _Mapped(pp_output_index)

    def _check_port(self, index: int, count: int, pp: Any, maps: dict[int, _Mapped], pp_index: int, what: str) -> None:
        if not 0 <= index < count:
            raise DfException(f"{self.name} has {count} {what}s, there is no {what} {index}")
        if pp is not self.point:
            raise DfException(f"the process point of a mapped {what} of {self.name} was not added to it")
        if any(each.index == pp_index for place, each in maps.items() if place != index):
            raise DfException(f"{what} {pp_index} of the process point of {self.name} is mapped twice")

    def set_attr(self, attr_name: str, attr_value: bool | str | int) -> None:
        """Set an attribute: `_flow_attr_depth` (messages that an edge holds), `_flow_attr_enqueue_policy`.

        Raises:
            DfTypeError: the name is no text, or the value of another type.
            DfException: a value that cannot be.
        """
        if not isinstance(attr_name, str) or not isinstance(attr_value, bool | str | int):
            raise DfTypeError(
                f"an attribute is a str with a bool, str or int, got {attr_name!r} with {type(attr_value).__name__}"
            )
        if attr_name == _DEPTH and (not isinstance(attr_value, int) or isinstance(attr_value, bool) or attr_value < 1):
            raise DfException(f"{_DEPTH} must be an int of at least 1, got {attr_value!r}")
        if attr_name == _POLICY and attr_value not in _POLICIES:
            raise DfException(f"{_POLICY} must be one of {', '.join(_POLICIES)}, got {attr_value!r}")
        self.attrs[attr_name] = attr_value

    @property
    def depth(self) -> int:
        """Messages that each of its input edges holds."""
        return int(self.attrs.get(_DEPTH, DEPTH)) if self.attrs.get(_FLOW) else DEPTH

    @property
    def overwrites(self) -> bool:
        """True if a full input edge drops its oldest message instead of blocking the sender."""
        return bool(self.attrs.get(_FLOW)) and self.attrs.get(_POLICY) == "OVERWRITE"

    def set_balance_scatter(self) -> None:
        """Spread outputs over the instances of the next stage by `BalanceConfig`; excludes gathering."""
        self.balance = self.balance or "scatter"

    def set_balance_gather(self) -> None:
        """Gather the outputs of its instances by rows or columns; excludes scattering."""
        self.balance = self.balance or "gather"

    def set_instances(self, instances: int) -> FlowNode:
        """Have N processes of this stage share the inputs, where the deploy file does not say. Not in the reference.

        Raises:
            DfTypeError: it is no int.
            DfException: it is out of range.
        """
        self.instances = check_instances(instances)
        return self

    def set_alias(self, name: str) -> FlowNode:
        """Name it in the deploy file.

        Raises:
            ValueError: another node has this alias or name.
        """
        with _lock:
            if name in _aliases or (name in _names.get(_NODE, ()) and name != self.name):
                raise ValueError(f"the alias {name} is taken")
            _aliases.discard(self.alias)
            _aliases.add(name)
        self.alias = name
        return self

    def stage_spec(self) -> StageSpec:
        """Return the stage's specification, with the ports of this node.

        Raises:
            DfException: the process point has other inputs or outputs than the node.
        """
        spec: StageSpec = self.point.stage_spec()
        functions = spec.functions or (
            StageFunction("run", tuple(range(self.input_num)), tuple(range(self.output_num))),
        )
        inward = self._places(self.input_maps, self.input_num)
        outward = self._places(self.output_maps, self.output_num)
        try:
            functions = tuple(
                replace(
                    each,
                    inputs=tuple(inward[index] for index in each.inputs),
                    outputs=tuple(outward[index] for index in each.outputs),
                )
                for each in functions
            )
        except KeyError as error:
            raise DfException(
                f"{self.name} has {self.input_num} inputs and {self.output_num} outputs, its process point uses number "
                f"{error.args[0]}"
            ) from None
        return replace(spec, name=self.name, functions=functions, instances=self.instances or spec.instances)

    def _places(self, maps: dict[int, _Mapped], count: int) -> dict[int, int]:
        """Return for each port of the process point the port of the node."""
        free = [index for index in range(count) if index not in {each.index for each in maps.values()}]
        unmapped = [place for place in range(count) if place not in maps]
        found = {each.index: place for place, each in maps.items()}
        for place in unmapped:  # the same number where that is free
            index = place if place in free else free[0]
            free.remove(index)
            found[index] = place
        return found

    @property
    def deploy_name(self) -> str:
        """Its name in the deploy file."""
        return self.alias or self.name

    def __repr__(self) -> str:
        return f"<FlowNode {self.name}, {self.input_num} in, {self.output_num} out>"


@dataclass(frozen=True, slots=True)
class Edge:
    """A connection from a node's output, or a graph's input, to an input of a node.

    Attributes:
        source: number of the node in the plan; -1 for an input of the graph.
        output: which of the node's outputs, or which of the graph's inputs.
        target: number of the node; -1 for an output of the graph.
        input: which of the node's inputs, or which of the graph's outputs, in `Plan.fetched`.
    """

    source: int
    output: int
    target: int
    input: int


@dataclass(frozen=True)
class Plan:
    """The plan of a graph: the part of it that runs.

    Attributes:
        inputs: the inputs that an output depends on, by name.
        nodes: the nodes that an output depends on, each after those it takes from.
        edges: how they are connected.
        fetched: the fetched outputs, in the order of nodes and their outputs; duplicates are adjacent.
        order: for each output of the graph as the user listed them, its place in `fetched`.
    """

    inputs: tuple[FlowData, ...]
    nodes: tuple[FlowNode, ...]
    edges: tuple[Edge, ...]
    fetched: tuple[FlowOutput, ...]
    order: tuple[int, ...]


def plan(outputs: Sequence[FlowOutput]) -> Plan:
    """Build the plan of a graph from its outputs, by walking back from them.

    Raises:
        DfException: an input of a node is not wired, a node runs nothing, there is a circle, or nothing is fed.
    """
    nodes: list[FlowNode] = []
    inputs: dict[str, FlowData] = {}
    open_: set[int] = set()

    def visit(node: FlowNode) -> None:
        if node in nodes:
            return
        if id(node) in open_:
            raise DfException(f"{node.name} takes from itself by way of others")
        open_.add(id(node))
        if len(node.inputs) != node.input_num:
            raise DfException(f"the inputs of {node.name} are not connected")
        for each in node.inputs:
            if isinstance(each, FlowData):
                inputs[each.name] = each
            else:
                visit(each.node)
        open_.discard(id(node))
        nodes.append(node)

    for output in outputs:
        visit(output.node)
    if not outputs or not inputs:
        raise DfException("a graph needs at least one input and one output")
    for node in nodes:
        if node.point is None:
            raise DfException(f"{node.name} has no process point")
        if getattr(node.point, "is_native", False):
            raise DfException(
                f"{node.name} runs functions that CANN builds in C++ ({node.point.compile_config_path}), which is not "
                "possible here: write them in Python and pass the class as py_func"
            )
    places = {id(node): place for place, node in enumerate(nodes)}
    fed = tuple(inputs[name] for name in sorted(inputs))
    fed_places = {each.name: place for place, each in enumerate(fed)}
    ranked = sorted(range(len(outputs)), key=lambda item: (places[id(outputs[item].node)], outputs[item].index))
    fetched = [(places[id(outputs[item].node)], outputs[item].index) for item in ranked]
    edges = [
        Edge(-1, fed_places[each.name], target, place)
        if isinstance(each, FlowData)
        else Edge(places[id(each.node)], each.index, target, place)
        for target, node in enumerate(nodes)
        for place, each in enumerate(node.inputs)
    ]
    edges += [Edge(node, index, -1, place) for place, (node, index) in enumerate(fetched)]
    order = tuple(ranked.index(item) for item in range(len(outputs)))
    return Plan(
        fed, tuple(nodes), tuple(edges), tuple(FlowOutput(nodes[node], index) for node, index in fetched), order
    )

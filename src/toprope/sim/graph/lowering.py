"""Translation of a traced graph with scopes into one that runs: calls between the operators set limits and streams.

Used by aclgraph.py (`by_stream`) and ge.py (`by_operator`). A scope of the capture mode ("reduce-overhead") becomes a
`get_stream_limit` and two `set_stream_limit`: one where the scope begins, and one where it ends, which restores the
values. Limits of the graph engine ("max-autotune") belong to operators: a stream's limit is set where the next operator
has another one, and restored at the end. The calls are functions of runtime.py. Tests:
tests/sim/simulated/test_graph.py.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule
from torch.fx.node import Node

from toprope.sim.air import scopes
from toprope.sim.air.operators import is_wait, mark
from toprope.sim.air.scopes import Enter, Exit
from toprope.sim.graph import runtime
from toprope.sim.graph.core_numbers import Cores

__all__ = ["by_operator", "by_stream"]

_CUBE, _VECTOR = "cube_core_num", "vector_core_num"
_LABELS = frozenset({scopes.STREAM_LABEL, scopes.STREAM_PRIORITY})


@dataclass
class _Limited:
    """A stream whose limit is changed, with what it was before."""

    stream: Node
    cube: Node
    vector: Node
    numbers: tuple[int, int] = (-1, -1)


class _Builder:
    """The new graph: copies of operators, and the calls around them."""

    def __init__(self, module: GraphModule) -> None:
        self._module = module
        self._graph = Graph()
        self._copies: dict[Node, Node] = {}
        self._left: list[Node] = []
        self._begin: Node | None = None

    def call(self, function: Callable[..., Any], *arguments: Any) -> Node:
        return self._graph.call_function(function, arguments)

    def copy(self, node: Node) -> Node:
        made = self._graph.node_copy(node, self._copies.__getitem__)
        self._copies[node] = made
        return made

    def alias(self, node: Node, other: Node) -> None:
        """Let a node of the old graph be the copy of another one."""
        self._copies[node] = self._copies[other]

    def limited(self, stream: Node) -> _Limited:
        read = self.call(torch.npu.get_stream_limit, stream)  # type: ignore[attr-defined]
        return _Limited(stream, self.call(operator.getitem, read, _CUBE), self.call(operator.getitem, read, _VECTOR))

    def limit(self, stream: Node, cube: int | Node, vector: int | Node) -> None:
        self.call(torch.npu.set_stream_limit, stream, cube, vector)  # type: ignore[attr-defined]

    def current(self) -> Node:
        return self.call(torch.npu.current_stream)  # type: ignore[attr-defined]

    def begin(self) -> None:
        """Record the event for which the streams wait that the graph switches to."""
        self._begin = self.call(runtime.record)

    def switch(self, label: str) -> tuple[Node, Node]:
        """Switch to the stream of that name; the stream before, and the new one."""
        before = self.current()
        stream = self.call(runtime.switch, label)
        self.call(runtime.wait, self._begin)
        return before, stream

    def leave(self, before: Node) -> None:
        self._left.append(self.call(runtime.record))
        self.call(torch.npu.set_stream, before)  # type: ignore[attr-defined]

    def join(self) -> None:
        """Let the graph's own stream wait for those that were switched to."""
        for event in self._left:
            self.call(runtime.wait, event)

    def finish(self) -> GraphModule:
        made = GraphModule(self._module, self._graph)
        made.graph.lint()
        return made


def by_stream(module: GraphModule) -> GraphModule:
    """The graph for "reduce-overhead".

    A scope that limits cores does so on the stream that is current at run time, or on the one it names. A switch to
    another stream inside takes the innermost limit there, too.

    Raises:
        ValueError: a limit is no integer.
    """
    build = _Builder(module)
    ends: list[Callable[[], None]] = []
    limits: list[tuple[int, int]] = []
    started = False
    for node in module.graph.nodes:
        if node.op != "placeholder" and not started:
            started = True
            if _switches(module):
                build.begin()
        found = mark(node)
        if isinstance(found, Enter):
            ends.append(_enter_by_stream(build, found.attributes, limits))
        elif isinstance(found, Exit):
            ends.pop()()
        else:
            if node.op == "output":
                build.join()
            build.copy(node)
    return build.finish()


def _enter_by_stream(
    build: _Builder, attributes: Mapping[str, str], limits: list[tuple[int, int]]
) -> Callable[[], None]:
    """Write where a scope begins; what is to be written where it ends."""
    if attributes.keys() >= scopes.CORE_LIMIT:
        numbers = int(attributes[scopes.AICORE]), int(attributes[scopes.VECTORCORE])
        held = build.limited(_stream_of(build, attributes))
        build.limit(held.stream, *numbers)
        limits.append(numbers)

        def lift() -> None:
            limits.pop()
            build.limit(held.stream, held.cube, held.vector)

        return lift
    if attributes.keys() >= _LABELS:
        before, stream = build.switch(attributes[scopes.STREAM_LABEL])
        inside = build.limited(stream) if limits else None
        if inside is not None:
            build.limit(inside.stream, *limits[-1])

        def back() -> None:
            build.leave(before)
            if inside is not None:
                build.limit(inside.stream, inside.cube, inside.vector)

        return back
    return lambda: None


def _stream_of(build: _Builder, attributes: Mapping[str, str]) -> Node:
    """The stream that a limit is for: the one that the scope names, else the current one."""
    if scopes.STREAM_ID not in attributes:
        return build.current()
    places = (scopes.STREAM_ID, scopes.STREAM_DEVICE, scopes.STREAM_KIND)
    return build.call(runtime.named_stream, *(int(attributes[place]) for place in places))


def by_operator(module: GraphModule, limits: Mapping[Node, Cores]) -> GraphModule:
    """The graph for "max-autotune".

    Args:
        module: as it was traced.
        limits: of each operator that has some.
    """
    build = _Builder(module)
    streams: dict[str, _Limited] = {}
    path: list[tuple[str, Node | None]] = []  # label of each scope's stream, and the stream before it was switched to
    crossings = _Crossings(build, module)
    started = False
    for node in module.graph.nodes:
        if node.op != "placeholder" and not started:
            started = True
            if _switches(module):
                build.begin()
        found = mark(node)
        label = path[-1][0] if path else ""
        if isinstance(found, Enter):
            switched = found.attributes.get(scopes.STREAM_LABEL)
            before = None if switched is None else build.switch(switched)[0]
            path.append((label if switched is None else switched, before))
        elif isinstance(found, Exit):
            _, before = path.pop()
            if before is not None:
                build.leave(before)
        else:
            if node.op == "output":
                for held in streams.values():
                    build.limit(held.stream, held.cube, held.vector)
                build.join()
            elif node.op == "call_function":
                crossings.wait(node)
                if is_wait(node):  # the streams are ordered by what was written just now
                    build.alias(node, node.args[0])
                    crossings.record(node)
                    continue
                _limit_for(build, streams, label, limits.get(node, Cores()))
            build.copy(node)
            crossings.record(node)
    return build.finish()


class _Crossings:
    """Values that an operator of another stream uses: the graph engine has that stream wait for them."""

    def __init__(self, build: _Builder, module: GraphModule) -> None:
        self._build = build
        self._label = dict(_labels(module))
        self._needed = {
            node
            for node, label in self._label.items()
            if any(self._label.get(user, label) != label for user in node.users)
        }
        self._events: dict[Node, Node] = {}
        self._waited: set[tuple[str, Node]] = set()

    def record(self, node: Node) -> None:
        """Write the event after a value that is used elsewhere."""
        if node in self._needed:
            self._events[node] = self._build.call(runtime.record)

    def wait(self, node: Node) -> None:
        """Write the waiting for what the operator takes from other streams, once for each stream and value."""
        label = self._label[node]
        for value in node.all_input_nodes:
            if value in self._events and self._label[value] != label and (label, value) not in self._waited:
                self._waited.add((label, value))
                self._build.call(runtime.wait, self._events[value])


def _labels(module: GraphModule) -> Iterator[tuple[Node, str]]:
    """The operators, with the names of their streams; the graph's own is ""."""
    for each in scopes.attributed(mark(node) or node for node in module.graph.nodes):
        if each.node.op == "call_function":
            yield each.node, each.attributes.get(scopes.STREAM_LABEL, "")


def _limit_for(build: _Builder, streams: dict[str, _Limited], label: str, wanted: Cores) -> None:
    """Set the current stream's limit for the next operator, where it is not so already."""
    numbers = (-1 if wanted.cube is None else wanted.cube, -1 if wanted.vector is None else wanted.vector)
    if label not in streams:
        if numbers == (-1, -1):
            return
        streams[label] = build.limited(build.current())
    held = streams[label]
    if held.numbers != numbers:
        cube, vector = (
            base if number == -1 else number for number, base in zip(numbers, (held.cube, held.vector), strict=True)
        )
        build.limit(held.stream, cube, vector)
        held.numbers = numbers


def _switches(module: GraphModule) -> bool:
    """Return True if the graph goes to another stream anywhere."""
    marks = map(mark, module.graph.nodes)
    return any(isinstance(each, Enter) and scopes.STREAM_LABEL in each.attributes for each in marks)

"""Reads graphs of `torch.fx` with core-limit and stream scopes in them; pure: torch is not imported.

A part of `cores.record`. Nodes are known by the names of their targets, such as torchair's `scope_enter`, and scopes by
its attributes (`_op_aicore_num` and the like): another project's names, which only its releases change. What is read of
a graph module: `graph.nodes`, and of a node `op`, `target`, `name`, `args`, `kwargs` and `all_input_nodes`. Tests:
tests/cores/test_cores_record_graph.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from toprope.cores.formats.queues import NO_CORES, Queue, streams_of
from toprope.cores.model import Card, Collective, Communicator, Cores, Op, Program
from toprope.errors import ScheduleError
from toprope.support.all_blocks import needs_all_blocks
from toprope.support.operator_kinds import kind_of

__all__ = ["from_graph"]

_ENTER = "scope_enter"
_EXIT = "scope_exit"
_CUBE, _VECTOR, _STREAM = "_op_aicore_num", "_op_vectorcore_num", "_user_stream_label"
_OF_STREAM = "_op_stream_stream_id"  # a limit of one stream, whichever is current; which label it has is not said
_DEFAULT = "default"

# Collectives of torch's functional interface, whose last argument names their communicator.
_FUNCTIONAL = ("c10d_functional", "_c10d_functional")
# What a functional collective's result passes through, and what only takes results apart, uses no cores.
_FREE = ("wait_tensor", "getitem")
# Which engine a kind of the profiler uses: cube, vector.
_USES: dict[str, Cores] = {"AI_CORE": (1, 0), "AI_VECTOR_CORE": (0, 1), "MIX_AIC": (1, 1), "MIX_AIV": (1, 1)}


def from_graph(
    graph: Any,
    cards: Sequence[Card],
    communicators: Sequence[Communicator] = (),
    kinds: Mapping[str, str] | None = None,
    source: str = "graph",
) -> Program:
    """The program of a graph, which every card runs.

    A scope's limit bounds an operator's cores, and without one the card does: the operator is taken to use as many as
    it may, cube cores, vector cores or both as its kind says. A proof that this is safe holds for fewer. An operator
    whose kind is not given is of unknown kind, and its cores are not known.

    An operator waits for those whose results it takes, also across streams.

    Args:
        graph: a `torch.fx.GraphModule`, or anything shaped like one.
        cards: the cards that run it.
        communicators: those that its collectives name; a name that is not among them belongs to a communicator of
            all cards.
        kinds: the profiler's word for operators, such as {"mm": "AI_CORE"}, by the operator's name.
        source: how errors and `Op.source` call the graph.

    Raises:
        ScheduleError: a scope is left that was not entered or never left, or a limit is no number or beyond a card.
    """
    groups = {each.name: each for each in communicators}
    queues: list[Queue] = []
    for card in cards:
        reader = _Reader(card, source, kinds or {})
        for number, node in enumerate(graph.graph.nodes):
            reader.read(node, f"{source}: node {number} ({node.name})")
        if reader.scopes:
            raise ScheduleError(
                "a scope is entered and never left.",
                looked_at=reader.scopes[-1].source,
                do="give the whole graph; a scope is a `with` block of torchair.scope",
            )
        queues += reader.queues.values()
        for name in reader.counts:
            groups.setdefault(name, Communicator(name, tuple(each.name for each in cards)))
    return Program(tuple(cards), streams_of(queues), tuple(groups.values()))


@dataclass(frozen=True)
class _Scope:
    attributes: Mapping[str, str]
    source: str


@dataclass
class _Reader:
    """A graph while it is read for one card."""

    card: Card
    source: str
    kinds: Mapping[str, str]
    scopes: list[_Scope] = field(default_factory=list)
    queues: dict[str, Queue] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    stream_of: dict[str, str] = field(default_factory=dict)

    def read(self, node: Any, where: str) -> None:
        """Read one node: a scope, an event, or an operator."""
        if node.op not in ("call_function", "call_method", "call_module"):
            return
        name = _name(node.target)
        if name == _ENTER:
            self.scopes.append(_Scope(_attributes(node, where), where))
        elif name == _EXIT:
            if not self.scopes:
                raise ScheduleError("a scope is left that was not entered.", looked_at=where, do="give the whole graph")
            self.scopes.pop()
        else:
            self._add(node, name, where)

    def _add(self, node: Any, name: str, where: str) -> None:
        stream = self._innermost(_STREAM) or _DEFAULT
        queue = self.queues.setdefault(stream, Queue(stream, self.card.name))
        for other in _inputs(node):
            if other in self.stream_of and self.stream_of[other] != stream:
                queue.wait(self._event(other))
        limit = self._limit(where)
        kind = NO_CORES if name in _FREE else self.kinds.get(name, "")
        cube, vector = _uses(kind, limit or self.card.cores)
        known, collective = _needs_all_blocks(name, kind), self._collective(node, name)
        needs_all = known is not False and collective is None and bool(cube or vector)
        op = Op(
            name, cube, vector, needs_all, collective, kind=kind, limit=limit, assumed=needs_all and known is None,
            source=where,
        )  # fmt: skip
        queue.add(op)
        queue.record(self._event(node.name), where)
        self.stream_of[node.name] = stream

    def _event(self, node: str) -> str:
        return f"{self.card.name}:{node}"

    def _innermost(self, attribute: str) -> str:
        scopes = (each.attributes for each in reversed(self.scopes) if _OF_STREAM not in each.attributes)
        return next((each[attribute] for each in scopes if attribute in each), "")

    def _limit(self, where: str) -> Cores | None:
        texts = self._innermost(_CUBE), self._innermost(_VECTOR)
        if not any(texts):
            return None
        limit = _number(texts[0], self.card.cube, where), _number(texts[1], self.card.vector, where)
        if limit[0] > self.card.cube or limit[1] > self.card.vector:
            raise ScheduleError(
                f"the limit {limit[0]} cube, {limit[1]} vector is beyond card {self.card.name}.",
                looked_at=f"{where}: the card has {self.card.cube} cube, {self.card.vector} vector",
                do="give limit_core_num what the card has at most; GE refuses more (E10001)",
            )
        return limit

    def _collective(self, node: Any, name: str) -> Collective | None:
        if name in _FREE or not any(part in _FUNCTIONAL for part in str(node.target).split(".")):
            return None
        group = str(node.kwargs.get("group_name", node.args[-1] if node.args else ""))
        sequence = self.counts.get(group, 0)
        self.counts[group] = sequence + 1
        return Collective(group, sequence)


def _name(target: Any) -> str:
    """The operator's name in a target: "scope_enter" for air.scope_enter.default, "mm" for aten.mm.default."""
    if isinstance(target, str):
        return target
    called = getattr(target, "__name__", "") if not hasattr(target, "overloadpacket") else ""
    parts = (called or str(target)).split(".")
    known = [part for part in parts if part in (_ENTER, _EXIT)]
    if known:
        return known[0]
    return parts[1] if len(parts) > 1 and not called else parts[0]


def _needs_all_blocks(name: str, kind: str) -> bool | None:
    """Return whether an operator of torch needs all of its blocks at once; None if no source says it."""
    known = needs_all_blocks(name, core=kind)
    if known is None:
        kinds = [each for each in (kind_of(f"aten::{name}"), kind_of(f"npu::{name}")) if not each.assumed]
        known = kinds[0].sync_all if kinds else None
    return known


def _attributes(node: Any, where: str) -> Mapping[str, str]:
    keys, values = (*node.args, node.kwargs.get("keys", ()), node.kwargs.get("values", ()))[:2]
    if len(keys) != len(values):
        raise ScheduleError("a scope has not as many values as keys.", looked_at=where, do="give the graph unchanged")
    return {str(key): str(value) for key, value in zip(keys, values, strict=True)}


def _inputs(node: Any) -> Iterator[str]:
    yield from (str(each.name) for each in node.all_input_nodes)


def _number(text: str, whole: int, where: str) -> int:
    """A limit as a scope gives it; 0 or none leaves the card's number."""
    if not text:
        return whole
    if not text.isascii() or not text.isdigit():
        raise ScheduleError(
            f"the limit {text!r} is no number.", looked_at=where, do="give limit_core_num whole numbers from 1"
        )
    return int(text) or whole


def _uses(kind: str, limit: Cores) -> Cores:
    cube, vector = _USES.get(kind, (0, 0))
    if cube and vector:  # a block of a mixed kernel is one cube core and two vector cores
        blocks = max(min(limit[0], limit[1] // 2), 1)
        return blocks, 2 * blocks
    return cube * limit[0], vector * limit[1]

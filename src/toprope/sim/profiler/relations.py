"""Relations in a profile: operators of the host with the kernels that they launched, and steps with theirs; pure.

Used by csv_views.py, trace_view.py and step_time.py. Tests: tests/sim/test_profiler_files.py.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from toprope.sim.profiler.capture import Capture, HostOperator
from toprope.sim.tracing.records import KERNELS, Record

__all__ = ["Node", "Relations", "Step", "relate"]


@dataclass(eq=False, slots=True)
class Node:
    """An operator of the host in the tree of calls.

    Attributes:
        operator: the operator.
        parent: the operator that called it; None for none.
        children: the operators that it called.
        kernels: those that it launched itself.
    """

    operator: HostOperator
    parent: Node | None = None
    children: list[Node] = field(default_factory=list)
    kernels: list[Record] = field(default_factory=list)

    @property
    def self_ns(self) -> int:
        """Time on the host without the operators that it called."""
        called = sum(child.operator.end_ns - child.operator.begin_ns for child in self.children)
        return self.operator.end_ns - self.operator.begin_ns - called

    def all_kernels(self) -> Iterator[Record]:
        """The kernels that it and the operators below it launched."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield from node.kernels
            waiting += node.children


@dataclass(frozen=True)
class Step:
    """One step of the profiler's schedule as the card saw it.

    Attributes:
        number: the step's.
        begin_ns: begin of its first kernel.
        end_ns: its end on the host, or the end of its last kernel, if that is later.
        host_ns: its begin on the host.
    """

    number: int
    begin_ns: int
    end_ns: int
    host_ns: int


@dataclass(frozen=True)
class Relations:
    """Operators and kernels of a capture.

    Attributes:
        nodes: the operators of the host by their begin, without Python functions and without those of the CPU that do
            the work of a kernel.
        launched_by: the operator that launched each kernel, by the index of its record, where one is known.
        steps: the steps in which a kernel was launched, in their order.
    """

    nodes: tuple[Node, ...]
    launched_by: Mapping[int, Node]
    steps: tuple[Step, ...]

    def step_of(self, wall_ns: int) -> int | None:
        """The number of the step in which a moment is."""
        return next((step.number for step in self.steps if step.begin_ns <= wall_ns <= step.end_ns), None)


def relate(capture: Capture) -> Relations:
    """Find the operator behind each kernel, and the steps.

    An operator of the simulated card runs in the thread that launches it: its kernel belongs to the innermost operator
    of the host that contains it. Operators inside the kernel are those of the CPU that do its work; no card calls them,
    and they are left out.
    """
    threads: dict[int, list[HostOperator]] = {}
    for operator in capture.operators:
        if not operator.python:
            threads.setdefault(operator.thread, []).append(operator)
    trees = {thread: _tree(operators) for thread, operators in threads.items()}
    launched_by: dict[int, Node] = {}
    launches = list(_launches(capture))
    for launch in launches:
        if launch.record.act == "collective":  # recorded by the thread that ended it
            found = (_containing(tree, launch) for tree in trees.values())
            node = next((each for each in map(_collective, found) if each is not None), None)
        else:
            node = _containing(trees.get(launch.thread, []), launch)
        if node is not None and not node.operator.is_step:
            node.kernels.append(launch.record)
            launched_by[launch.index] = node
            if launch.record.act == "operator":
                node.children = [child for child in node.children if not _inside(child.operator, launch)]
    nodes = sorted((node for tree in trees.values() for node in _all(tree)), key=lambda node: node.operator.begin_ns)
    return Relations(tuple(nodes), launched_by, tuple(_steps(capture, nodes, launches)))


_SLACK_NS = 1000
"""By how much the clocks of the two records may differ."""


@dataclass(frozen=True, slots=True)
class _Launch:
    """A kernel with the thread and the time, on the wall clock, in which the host launched it."""

    index: int
    record: Record
    thread: int
    begin_ns: int
    end_ns: int


def _collective(node: Node | None) -> Node | None:
    while node is not None and not node.operator.name.startswith("c10d::"):
        node = node.parent
    return node


def _inside(operator: HostOperator, launch: _Launch) -> bool:
    return operator.begin_ns >= launch.begin_ns - _SLACK_NS and operator.end_ns <= launch.end_ns + _SLACK_NS


def _tree(operators: Sequence[HostOperator]) -> list[Node]:
    """The operators of one thread that no other one called, each with those below it."""
    roots: list[Node] = []
    open_: list[Node] = []
    for operator in sorted(operators, key=lambda each: (each.begin_ns, -each.end_ns)):
        while open_ and open_[-1].operator.end_ns <= operator.begin_ns:
            open_.pop()
        node = Node(operator, open_[-1] if open_ else None)
        (open_[-1].children if open_ else roots).append(node)
        open_.append(node)
    return roots


def _all(roots: Iterable[Node]) -> Iterator[Node]:
    waiting = list(roots)
    while waiting:
        node = waiting.pop()
        yield node
        waiting += node.children


def _containing(roots: list[Node], launch: _Launch) -> Node | None:
    """The innermost operator that contains a launch."""
    found: Node | None = None
    nodes = roots
    while nodes:
        place = bisect_right(nodes, launch.begin_ns + _SLACK_NS, key=lambda node: node.operator.begin_ns)
        near = nodes[max(place - 2, 0) : place]
        inner = next((node for node in reversed(near) if node.operator.end_ns >= launch.end_ns - _SLACK_NS), None)
        if inner is None:
            break
        found, nodes = inner, inner.children
    return found


def _launches(capture: Capture) -> Iterator[_Launch]:
    queued: dict[tuple[int, int, str], deque[Record]] = {}
    for index, record in enumerate(capture.trace.records):
        key = record.device, record.stream, record.name
        begin, end, thread = record.begin_ns, record.begin_ns, record.thread
        if record.act == "launch":
            queued.setdefault(key, deque()).append(record)
        if record.act not in KERNELS:
            continue
        if record.act == "operator":
            end = record.end_ns
        elif record.act == "kernel":
            if not queued.get(key):
                continue
            launch = queued[key].popleft()
            begin, end, thread = launch.begin_ns, launch.begin_ns, launch.thread
        yield _Launch(index, record, thread, capture.wall_ns(begin), capture.wall_ns(end))


def _steps(capture: Capture, nodes: Iterable[Node], launches: Iterable[_Launch]) -> Iterator[Step]:
    for node in nodes:
        step = node.operator
        number = step.name.partition("#")[2]
        if not step.is_step or not number.isdecimal():
            continue
        kernels = [each.record for each in launches if step.begin_ns <= each.begin_ns <= step.end_ns]
        if kernels:
            begin = min(capture.wall_ns(record.begin_ns) for record in kernels)
            end = max(capture.wall_ns(record.end_ns) for record in kernels)
            yield Step(int(number), begin, max(end, step.end_ns), step.begin_ns)

"""Capture of a graph (NPUGraph): operators are recorded, and their results allocated, without being computed.

graphs.py begins and ends it, and replays the nodes. A dispatch mode sees every operator below autograd. Views and
changes of a tensor's shape happen at once, since they touch no data; every other operator becomes a node. A node keeps
the tensors that it reads from outside the graph's pool alive; tensors in the pool it refers to by address, so that
memory freed during the capture is reused in it, as on a card. `_DRAW` is kDrawn of csrc/torch/random.cpp. Tests:
tests/sim/simulated/test_graphs.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from toprope.sim.composites import unrecorded
from toprope.sim.native import native
from toprope.sim.npu._npugraph_handlers.npugraph_handler import _NPU_GRAPH_OP_HANDLERS
from toprope.sim.npu._state import vendor_error
from toprope.sim.npu.events import ExternalEvent
from toprope.sim.npu.random import default_generators

__all__ = ["Branch", "Capture", "DispatchRecord", "Node", "at_capture", "captured", "current", "in_graph", "update_of"]

at_capture: dict[Any, Callable[[tuple[Any, ...], dict[str, Any]], dict[str, Any]]] = {}
"""By operator: a function that gives the keywords of all replays, called once with the arguments of a captured call."""

_replaying: ContextVar[bool] = ContextVar("_replaying", default=False)

_DRAW = 12  # what an operator adds to its generator's offset (kDrawn of csrc/torch/random.cpp)
_COPIES = (torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default)


@dataclass
class Node:
    """One operator of a graph.

    Attributes:
        function: what is called at each replay.
        arguments: of the call.
        keywords: of the call.
        results: tensors that receive what it returns; None where it returns one of its arguments, or no tensor.
        generator: what it draws from.
        offset: of the generator, from its offset at the beginning of the replay.
        ready: says whether the replay may go on; None for no wait.
    """

    function: Callable[..., Any]
    arguments: Any = ()
    keywords: dict[str, Any] = field(default_factory=dict)
    results: list[torch.Tensor | None] = field(default_factory=list)
    generator: torch.Generator | None = None
    offset: int = 0
    ready: Callable[[], bool] | None = None

    def run(self, begun: dict[torch.Generator, int]) -> None:
        """Compute, and write the results where the capture allocated them.

        Args:
            begun: offset of each generator at the beginning of the replay.
        """
        if self.generator is not None:
            self.generator.set_offset(begun[self.generator] + self.offset)
        token = _replaying.set(True)
        try:
            found = self.function(*self.arguments, **self.keywords)
        finally:
            _replaying.reset(token)
        if any(result is not None for result in self.results):
            with unrecorded():  # a card computes where the results belong
                for result, value in zip(self.results, tree_leaves(found), strict=True):
                    if result is not None:
                        result.copy_(value)


@dataclass
class Branch(Node):
    """Part of a graph that runs only where a tensor of the card is true at that place of the replay.

    Attributes:
        condition: one bool.
        body: what runs.
    """

    condition: torch.Tensor | None = None
    body: list[Node] = field(default_factory=list)

    def taken(self) -> bool:
        """Read the condition; a card reads it without the host."""
        with unrecorded():
            return bool(self.condition)


@dataclass
class DispatchRecord:
    """A captured call whose arguments on the host can be changed; handlers know these names."""

    node: Node
    event: Any
    op_cache_entry: Any
    args: list[Any]
    kwargs: dict[str, Any]


class Capture(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The operators of a program between the begin and the end of a capture.

    Attributes:
        nodes: in their order.
        generators: offset of each generator that is drawn from: at the begin of the capture, and now.
        records: calls that `NPUGraph.update` can change.
        pool: number of the pool that the capture's memory lies in.
    """

    def __init__(self, pool: int, with_records: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.nodes: list[Node] = []
        self.generators: dict[torch.Generator, int] = {}
        self.records: list[DispatchRecord] = []
        self._last: dict[int, int] = {}  # place after the last operator, by stream
        self._marks: dict[int, tuple[Any, int, int]] = {}  # the event, kept so that no other has its id; stream; place
        self._joined: dict[int, int] = {}  # place up to which another stream waits, by stream
        self.pool = pool
        self._with_records = with_records
        self._outside: list[list[Node]] = []  # nodes around the branches that are being captured
        from torch._subclasses.fake_tensor import FakeTensorMode  # slow to import

        self._fakes = FakeTensorMode(allow_non_fake_inputs=True)

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Let torch.compile ignore the mode."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not _on_card(func, args, kwargs):
            return func(*args, **kwargs)
        if func.is_view or torch.Tag.inplace_view in func.tags:
            return func(*args, **kwargs)
        _refuse_waits(func, args, kwargs)
        if func in at_capture:
            kwargs = at_capture[func](tuple(args), kwargs)
        handler = _NPU_GRAPH_OP_HANDLERS.get(func.__name__) if self._with_records else None
        if handler is None:
            return self._record(func, args, kwargs)[0]
        func, args, kwargs = handler.prepare_capture(func, args, kwargs)
        event = ExternalEvent()  # a replay waits for the update that comes before or after it
        event.wait()
        event.reset()
        result, node = self._record(func, args, kwargs)
        node.arguments = list(node.arguments)
        self.records.append(DispatchRecord(node, event, func, node.arguments, node.keywords))
        return handler.postprocess_result(result, kwargs)

    def _record(self, func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, Node]:
        generator, offset = self._drawn(func, args, kwargs)
        arguments, keywords = tree_map(self._kept, (tuple(args), kwargs))
        node = Node(func, arguments, keywords, generator=generator, offset=offset)
        result, node.results = self._results(func, args, kwargs)
        self._append(node)
        return result, node

    def _append(self, node: Node) -> None:
        self.nodes.append(node)
        self._last[native().current_stream(native().current_device())] = len(self.nodes)

    def add_compiled(
        self, function: Callable[[list[Any]], list[Any]], inputs: list[Any], written: set[int]
    ) -> list[Any]:
        """Add a function that a compiler made: what its results are like is seen by running it.

        Args:
            function: takes the inputs as a list, which it may empty.
            inputs: tensors and numbers.
            written: places of inputs that it changes. They are as before when this returns.

        Returns:
            Its results: tensors without values, or views of inputs.
        """
        generator = default_generators()[native().current_device()]
        begun = generator.get_offset()
        arguments = [self._kept(each) for each in inputs]
        with torch.utils._python_dispatch._disable_current_modes(), unrecorded(), _not_capturing():
            for each in inputs:
                self._make_valid(each)
            saved = {place: inputs[place].clone() for place in written if isinstance(inputs[place], torch.Tensor)}
            results = function([*inputs])
            for place, value in saved.items():
                inputs[place].copy_(value)
        now = generator.get_offset()
        node = Node(lambda *each: function([*each]), arguments)
        if now != begun:
            self.generators.setdefault(generator, begun)
            node.generator, node.offset = generator, begun - self.generators[generator]
        of_inputs = {each.untyped_storage().data_ptr() for each in inputs if isinstance(each, torch.Tensor)}
        for result in results:
            new = isinstance(result, torch.Tensor) and result.untyped_storage().data_ptr() not in of_inputs
            node.results.append(None if not new else _borrowed(result) if result.device.type == "npu" else result)
        self._append(node)
        return results

    def _make_valid(self, leaf: Any) -> None:
        """Zero an index whose value the graph has yet to compute, so that nothing is read out of bounds with it."""
        if not self.nodes or not isinstance(leaf, torch.Tensor) or leaf.is_floating_point() or leaf.is_complex():
            return
        if leaf.device.type == "npu" and native().pool_of(leaf.untyped_storage().data_ptr()) == self.pool:
            leaf.zero_()

    def recorded(self, event: Any, stream: int) -> None:
        """An event marks the end of what was captured on a stream so far."""
        self._marks[id(event)] = event, stream, len(self.nodes)

    def waited(self, event: Any) -> None:
        """Another stream waits for an event."""
        if id(event) in self._marks:
            _, stream, place = self._marks[id(event)]
            self._joined[stream] = max(place, self._joined.get(stream, 0))

    def unjoined(self, stream: int) -> list[int]:
        """Streams with operators that the stream of the capture does not wait for."""
        return [other for other, last in self._last.items() if other != stream and self._joined.get(other, 0) < last]

    def note(self, function: Callable[[], Any], ready: Callable[[], bool] | None = None) -> None:
        """Add a call of the host's that is no operator."""
        self.nodes.append(Node(function, ready=ready))

    def begin_branch(self, condition: torch.Tensor) -> None:
        """Capture what follows as a part of the graph that runs only where the condition is true."""
        branch = Branch(bool, [condition], condition=self._kept(condition))
        self.nodes.append(branch)
        self._outside.append(self.nodes)
        self.nodes = branch.body

    def end_branch(self) -> None:
        """End the branch that was begun last.

        Raises:
            RuntimeError: there is none.
        """
        if not self._outside:
            raise RuntimeError("end_capture_to_conditional_node() called before begin_capture_to_if_node().")
        self.nodes = self._outside.pop()

    def _drawn(self, func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[torch.Generator | None, int]:
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return None, 0
        if self._outside:
            raise RuntimeError(
                f"RNG op during graph capture but generator is not registered: {func} is in a conditional node, and"
                " RNG within data-dependent conditional nodes is not supported yet."
            )
        given = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Generator)]
        generator = given[0] if given else default_generators()[native().current_device()]
        now = generator.get_offset()
        self.generators.setdefault(generator, now)
        generator.set_offset(now + _DRAW)
        return generator, now - self.generators[generator]

    def _kept(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if leaf.device.type != "npu":
            return leaf.detach() if leaf.is_pinned() else leaf.detach().clone()
        return _borrowed(leaf) if native().pool_of(leaf.untyped_storage().data_ptr()) == self.pool else leaf.detach()

    def _results(self, func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, list[torch.Tensor | None]]:
        """Results of the call: arguments that it writes, and new tensors for the rest."""
        schema = func._schema
        written = _written(schema, args, kwargs)
        if schema.returns and all(each.alias_info is not None for each in schema.returns):
            found = [
                written[next(iter(each.alias_info.after_set or each.alias_info.before_set))] for each in schema.returns
            ]
            return (found[0] if len(found) == 1 else tuple(found)), []
        if not schema.returns:
            return None, []
        from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

        try:
            with self._fakes:
                fakes = func(*tree_map(_without_data, tuple(args)), **tree_map(_without_data, kwargs))
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise _waits(f"{func} has a result whose shape or value depends on data of the card") from error
        leaves, shape = tree_flatten(fakes)
        made: list[Any] = []
        results: list[torch.Tensor | None] = []
        with torch.utils._python_dispatch._disable_current_modes():
            for leaf in leaves:
                if not isinstance(leaf, torch.Tensor):
                    made.append(leaf)
                    results.append(None)
                    continue
                on_host = leaf.device.type == "cpu"
                new = torch.empty_strided(
                    leaf.size(), leaf.stride(), dtype=leaf.dtype, device=leaf.device, pin_memory=on_host
                )
                made.append(new)
                results.append(_borrowed(new) if leaf.device.type == "npu" else new)
        return tree_unflatten(made, shape), results


@contextmanager
def _not_capturing() -> Iterator[None]:
    """Context in which the host may wait for the card although a graph is being captured."""
    native().set_capturing(0)
    try:
        yield
    finally:
        native().set_capturing(1)


_current: list[Capture] = []


def in_graph() -> bool:
    """Return True while an operator is captured, and while a replay computes it."""
    return bool(_current) or _replaying.get()


def current() -> Capture | None:
    """The capture that is under way in this process."""
    return _current[-1] if _current else None


@contextmanager
def captured(capture: Capture) -> Iterator[None]:
    """Context in which operators are recorded."""
    _current.append(capture)
    try:
        with capture:
            yield
    finally:
        _current.remove(capture)


@contextmanager
def update_of(nodes: list[Node], pool: int) -> Iterator[None]:
    """Context whose operators take the place of captured ones.

    Raises:
        RuntimeError: 107040, they are other operators than those.
    """
    capture = Capture(pool)
    with capture:
        yield
    names, wanted = ([str(node.function) for node in each] for each in (capture.nodes, nodes))
    if names != wanted:
        detail = f"The group has {', '.join(wanted) or 'no operator'}; the update has {', '.join(names) or 'none'}."
        raise vendor_error("graph_task_update_end", "AclmdlRICaptureTaskUpdateEnd(stream)", 107040, detail)
    for node, new in zip(nodes, capture.nodes, strict=True):
        node.arguments, node.keywords = new.arguments, new.keywords


def _without_data(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return torch.empty_strided(leaf.size(), leaf.stride(), dtype=leaf.dtype, device=leaf.device)


def _on_card(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    for leaf in tree_leaves((args, kwargs)):
        if isinstance(leaf, torch.Tensor) and leaf.device.type == "npu":
            return True
        if isinstance(leaf, torch.device) and leaf.type == "npu":
            return True
    return False


def _refuse_waits(func: Any, args: Any, kwargs: dict[str, Any]) -> None:
    """Refuse copies for which the host waits, which a capture cannot hold."""
    if func not in _COPIES:
        return
    if func is _COPIES[0]:
        to, source = args[0], args[1]
        waits = not (args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
        kinds = source.device.type, to.device.type
        host = source if kinds[0] == "cpu" else to
    else:
        host = args[0]
        kinds = host.device.type, torch.device(kwargs.get("device") or host.device).type
        waits = not kwargs.get("non_blocking", False)
    if (
        kinds[0] == kinds[1]
        or "npu" not in kinds
        or (host.device.type == "cpu" and host.dim() == 0 and host.numel() == 1)
    ):
        return
    if waits or (kinds[0] == "cpu" and not host.is_pinned()):
        raise _waits(f"copy from {kinds[0]} to {kinds[1]}: only copies with pinned memory and non_blocking=True")


def _waits(detail: str) -> RuntimeError:
    return vendor_error(
        "synchronize", "aclrtSynchronizeStream(stream)", 107027, f"A graph is being captured; {detail}."
    )


def _written(schema: Any, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments that the operator writes, by the name of their alias in the schema."""
    found = {}
    for place, argument in enumerate(schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        for name in argument.alias_info.before_set:
            found[name] = value
    return found


def _borrowed(tensor: torch.Tensor) -> torch.Tensor:
    """A second tensor at the same address, which does not keep the memory."""
    with torch.utils._python_dispatch._disable_current_modes():
        memory = tensor.untyped_storage()
        construct: Any = torch._C._construct_storage_from_data_pointer  # its annotation names another class
        storage = construct(memory.data_ptr(), memory.device, memory.nbytes())
        made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        made.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
        return made

"""Process points that run Python: a decorated function, and a class with decorated methods.

`decorators` and `npu_models` make nodes by it. Half of it runs while a graph is built, half (`_make_function`,
`_make_actor`) in the stage's process, where `worker.calls` calls the function: what is handed over must be picklable.
`fnode`, the names and order of ports, and what a decorated class refuses are those of CANN's dataflow API. Tests:
tests/flow/test_flow_decorators.py, tests/flow/test_flow_run.py.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toprope.flow import running
from toprope.flow.exceptions import DfException, DfTypeError
from toprope.flow.graph.nodes import FlowData, FlowNode, FlowOutput
from toprope.flow.points.signature import input_count, output_count
from toprope.flow.points.workspace import write
from toprope.flow.registry import msg_type_register, unwrap, wrap
from toprope.flow.session import is_strict
from toprope.flow.stage.spec import StageContext, StageFunction, StageObject, StageSpec
from toprope.flow.udf.queues import FlowMsgQueue

__all__ = ["ActorNode", "Method", "Options", "PythonPoint", "decorate_class", "decorate_function", "local"]

_RESERVED = ("fnode", "_fnode", "_df_from_class")

_making = threading.local()


@dataclass(frozen=True)
class Options:
    """Arguments of a decorator (`pyflow`, `npu_model`), checked.

    Attributes:
        kind: "python", or "npu" for tensors on the stage's device.
        num_returns: number of outputs; None leaves it to the annotation.
        resources, env_hook, visible_device: see `StageSpec`.
        stream_input: whether the function is given queues.
        choice: for each output the function that decides whether a value is sent.
        instances, batch, wait_ns: see `StageSpec`.
    """

    kind: str = "python"
    num_returns: Any = None
    resources: Mapping[str, float] = field(default_factory=dict)
    env_hook: Callable[[], Any] | None = None
    visible_device: bool = False
    stream_input: bool = False
    choice: Any = None
    instances: int = 1
    batch: int = 0
    wait_ns: int = 0


@dataclass(frozen=True)
class Method:
    """A method of a stage's class: its name, its function, and the arguments of `method`."""

    name: str
    function: Callable[..., Any]
    options: Options


class PythonPoint:
    """Process point of a decorated function or class.

    Args:
        name: of the function or class.
        options: of the decorator.
        functions: with the places of their inputs and outputs.
        code: pickle of the factory of the stage's object.
        workspace: the stage's folder.
    """

    def __init__(
        self, name: str, options: Options, functions: tuple[StageFunction, ...], code: bytes, workspace: Path
    ) -> None:
        self.name = name
        self.options = options
        self.functions = functions
        self._code = code
        self._workspace = workspace
        self._hook = _pickled(options.env_hook) if options.env_hook is not None else None
        write(workspace, name, self.ports, functions, options.resources, options.visible_device)

    @property
    def ports(self) -> tuple[int, int]:
        """Number of inputs and outputs."""
        inward = 1 + max((index for each in self.functions for index in each.inputs), default=-1)
        return inward, 1 + max((index for each in self.functions for index in each.outputs), default=-1)

    def stage_spec(self) -> StageSpec:
        """The stage's specification."""
        options = self.options
        return StageSpec(
            self.name, options.kind, self._code, self.functions, options.resources, self._hook, options.visible_device,
            str(self._workspace), msg_type_register.pickled(), options.instances, options.batch, options.wait_ns,
        )  # fmt: skip


def _pickled(value: Any) -> bytes:
    from toprope.functions.transport.serialization import dumps

    return dumps(value)


def stage_object(context: StageContext, functions: Mapping[str, Callable[..., Any]]) -> StageObject:
    """The object of a stage of functions that take and return values."""
    inside = {name: running.inside(context, each) for name, each in functions.items()}
    return StageObject(inside, wrap, unwrap, FlowMsgQueue)


# Functions


def decorate_function(function: Callable[..., Any], options: Options) -> Callable[..., Any]:
    """Give a function an `fnode`. Called directly it stays what it is, for a look at it without a graph.

    Raises:
        DfAssertionError: the number of its outputs contradicts itself.
        DfTypeError: the decorator was given what does not go with a function.
    """
    output_count(function, options.num_returns, strict=is_strict())
    _check_batched(function, options)
    original = function

    @functools.wraps(original)
    def local_call(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    def fnode(name: str | None = None) -> FlowNode:
        count = output_count(original, options.num_returns, strict=is_strict())
        inputs = input_count(original)
        node = _mark_npu_model(FlowNode(inputs, count, name or f"{original.__name__}_fnode"), options)
        choice = _choices(options.choice, count)
        run = StageFunction(
            "run",
            tuple(range(inputs)),
            tuple(range(count)),
            options.stream_input,
            choice,
            _generates(original, options),
        )
        code = _pickled(functools.partial(_make_function, original))
        node.add_process_point(PythonPoint(original.__name__, options, (run,), code, workspace(node)))
        return node

    local_call.fnode = fnode  # type: ignore[attr-defined]
    local_call.__df_options__ = options  # type: ignore[attr-defined]
    return local_call


def _generates(function: Callable[..., Any], options: Options) -> bool:
    """True if a function makes several results of one input; the reference has no generators in models."""
    return inspect.isgeneratorfunction(function) and options.kind == "python"


def _check_batched(function: Callable[..., Any], options: Options) -> None:
    """Refuse batches for functions that make several results of an input, or have no input.

    Raises:
        DfException: it does.
    """
    if not options.batch:
        return
    name = getattr(function, "__name__", repr(function))
    if inspect.isgeneratorfunction(function):
        raise DfException(f"{name} is a generator, so batch cannot split its results back to their inputs")
    if not input_count(function):
        raise DfException(f"{name} has no inputs, so there is nothing to batch")


def _make_function(function: Callable[..., Any], context: StageContext) -> StageObject:
    running.enter(context)
    return stage_object(context, {"run": function})


def _mark_npu_model(node: FlowNode, options: Options) -> FlowNode:
    if options.kind == "npu":
        node.attrs["_npu_sched_model"] = 1
    return node


def workspace(node: FlowNode) -> Path:
    """The folder of a node's stage: ./<node>_ws."""
    return Path.cwd() / f"{node.name}_ws"


def _choices(choice: Any, count: int) -> tuple[Callable[[Any], Any] | None, ...]:
    """Return for each output the function that decides whether a value is sent.

    Raises:
        DfTypeError: neither a function nor a list of them, one for each output.
    """
    if choice is None:
        return ()
    listed = tuple(choice) if isinstance(choice, list | tuple) else (choice,) * count
    if len(listed) != count or not all(each is None or callable(each) for each in listed):
        raise DfTypeError(f"choice_output must be a function, or a list of {count} of them, got {choice!r}")
    return listed


# Classes


class ActorNode(FlowNode):
    """The node of a class: each of its methods is wired by itself, `node.forward(x)`, or all at once, `node(x, ...)`.

    Args:
        name: its name.
        functions: the methods.
    """

    def __init__(self, name: str, functions: Sequence[StageFunction]) -> None:
        inputs, outputs = sum(len(each.inputs) for each in functions), sum(len(each.outputs) for each in functions)
        super().__init__(inputs, outputs, name)
        self._methods = {each.name: each for each in functions}
        self._wired: dict[int, FlowData | FlowOutput] = {}

    def __getattr__(self, name: str) -> Any:
        methods = self.__dict__.get("_methods", {})
        if name in methods:
            return functools.partial(self._wire, methods[name])
        raise AttributeError(
            f"{type(self).__name__} has no attribute {name!r}, and its class no such method", name=name
        )

    def _wire(self, method: StageFunction, *inputs: FlowData | FlowOutput) -> Any:
        if len(inputs) != len(method.inputs):
            raise DfException(f"{self.name}.{method.name} has {len(method.inputs)} inputs, got {len(inputs)}")
        for each in inputs:
            self._check_input(each)
        self._wired.update(zip(method.inputs, inputs, strict=True))
        if len(self._wired) == self.input_num:
            self.inputs = tuple(self._wired[place] for place in range(self.input_num))
        found = tuple(FlowOutput(self, place) for place in method.outputs)
        return found[0] if len(found) == 1 else found or None


def decorate_class(cls: type, options: Options, fnode: Callable[..., FlowNode]) -> type:
    """Give a class an `fnode`; it cannot be called any more.

    Raises:
        DfTypeError: it has something of this name.
        DfException: it has no method that `method` decorates.
    """
    for name in _RESERVED:
        if hasattr(cls, name):
            raise DfTypeError(f"class {cls.__name__} has {name}, which the decorator adds")
    for each in methods(cls):
        output_count(each.function, _returns(each, options), strict=is_strict())
        _check_batched(each.function, options)
        if options.batch and each.options.stream_input:
            raise DfException(f"batch and the stream_input of {each.name} contradict each other")
    if not methods(cls):
        raise DfException(f"no method of {cls.__name__} is decorated with method()")
    make_object: Any = cls.__new__

    def new(kind: type, /, *args: Any, **kwargs: Any) -> Any:
        if kind is cls:
            _check_making(cls.__name__)
        return make_object(kind) if make_object is object.__new__ else make_object(kind, *args, **kwargs)

    def class_fnode(kind: type, /, *args: Any, **kwargs: Any) -> FlowNode:
        return fnode(kind, options, args, kwargs)

    cls.__new__ = new  # type: ignore[method-assign]
    cls.fnode = classmethod(class_fnode)  # type: ignore[attr-defined]
    cls._df_from_class = True  # type: ignore[attr-defined]
    return cls


def _check_making(name: str) -> None:
    """Refuse a decorated class to be called. A function of its own: what the class holds is pickled with it."""
    if not getattr(_making, "depth", 0):
        raise DfTypeError(f"{name} is a stage of a graph: use {name}.fnode(...)")


def methods(cls: type) -> list[Method]:
    """The methods of a class that `method` decorates, by name."""
    found = {}
    for name in dir(cls):
        function = getattr(cls, name, None)
        options = getattr(function, "_df_method", None)
        if isinstance(options, Options):
            found[name] = Method(name, function, options)  # type: ignore[arg-type]
    return [found[name] for name in sorted(found)]


def method_functions(cls: type, options: Options) -> tuple[StageFunction, ...]:
    """The methods of a class with their places, in the order of their names."""
    functions: list[StageFunction] = []
    inward = outward = 0
    for each in methods(cls):
        inputs = input_count(each.function)
        count = output_count(each.function, _returns(each, options), strict=is_strict())
        choice = _choices(each.options.choice, count)
        functions.append(
            StageFunction(
                each.name, tuple(range(inward, inward + inputs)), tuple(range(outward, outward + count)),
                each.options.stream_input, choice, _generates(each.function, options),
            )
        )  # fmt: skip
        inward, outward = inward + inputs, outward + count
    return tuple(functions)


def _returns(method: Method, options: Options) -> Any:
    """Return num_returns of a method, else of its class; the reference loses the class's."""
    return options.num_returns if method.options.num_returns is None else method.options.num_returns


def actor_fnode(cls: type, options: Options, args: tuple[Any, ...], kwargs: dict[str, Any]) -> FlowNode:
    """A node whose stage makes an object of a class."""
    functions = method_functions(cls, options)
    node = _mark_npu_model(ActorNode(f"{cls.__name__}_fnode", functions), options)
    names = tuple(each.name for each in functions)
    moves = options.kind == "npu" and not is_strict()
    code = _pickled(functools.partial(_make_actor, cls, args, kwargs, names, moves))
    node.add_process_point(PythonPoint(cls.__name__, options, functions, code, workspace(node)))
    return node


def _make_actor(
    cls: type, args: tuple[Any, ...], kwargs: dict[str, Any], names: tuple[str, ...], moves: bool,
    context: StageContext,
) -> StageObject:  # fmt: skip
    running.enter(context)
    made = local(cls, *args, **kwargs)
    if moves:
        made = _move_to_device(made, context)
    return stage_object(context, {name: getattr(made, name) for name in names})


def _move_to_device(model: Any, context: StageContext) -> Any:
    """A model whose weights are on the host, moved to the stage's device, where its inputs are."""
    import torch

    if not isinstance(model, torch.nn.Module) or not context.device:
        return model
    held = [*model.parameters(), *model.buffers()]
    return model.to(context.device) if all(each.device.type == "cpu" for each in held) else model


def local(cls: type, *args: Any, **kwargs: Any) -> Any:
    """An object of a decorated class in this process, to look at it without a graph.

    Args:
        cls: the class.
        args, kwargs: of its constructor.
    """
    _making.depth = getattr(_making, "depth", 0) + 1
    try:
        return cls(*args, **kwargs)
    finally:
        _making.depth -= 1

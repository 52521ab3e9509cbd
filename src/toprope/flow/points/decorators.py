"""`pyflow` and `method`: a Python function or class as a stage.

For users. Only the arguments of the decorators are checked here; the nodes are made by `python_points`. The options'
names and the types and words of refusals are those of CANN's dataflow API; `instances`, `batch` and `wait` are
toprope's own. Tests: tests/flow/test_flow_decorators.py, tests/flow/test_serve_parts.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from toprope.flow.exceptions import DfAssertionError, DfException, DfTypeError
from toprope.flow.graph.nodes import check_instances
from toprope.flow.points.python_points import Options, actor_fnode, decorate_class, decorate_function
from toprope.flow.points.signature import output_count
from toprope.flow.points.workspace import check_resources
from toprope.flow.worker.dynamic_batch import check_batch

__all__ = ["checked_options", "method", "pyflow"]

_OF_METHOD = ("num_returns", "choice_output", "stream_input")
_OF_PYFLOW = (
    "num_returns", "resources", "env_hook_func", "visible_device_enable", "stream_input", "choice_output", "instances",
    "batch", "wait",
)  # fmt: skip


def pyflow(*args: Any, **options: Any) -> Any:
    """Decorate a function, or a class with methods that `method` decorates: `fnode()` makes a stage of it.

    Args:
        args: the function or class, if the decorator is used without parentheses.
        options: num_returns: number of outputs; by default the number in the annotation.
            resources: "num_cpus", "memory" (MB), "num_npus" (1).
            env_hook_func: called in the stage's process before anything of it is unpickled.
            visible_device_enable: whether the process is shown only its own card.
            stream_input: "Queue": the parameters are queues (`dataflow.flow_func.FlowMsgQueue`).
            choice_output: a function; an output is sent where it is true of the value.
            instances: processes that share the inputs. Not in the reference, as the next two.
            batch: most inputs of one call: each parameter is a list, and so is each result, one value for each input.
            wait: time that the first input of a batch waits for others, such as "5ms"; left out, none.

    Raises:
        DfTypeError: an option that there is not, or something that is neither function nor class.
        DfAssertionError: num_returns cannot be.
    """
    unknown = [each for each in options if each not in _OF_PYFLOW]
    if unknown:
        raise DfTypeError(f"param:{unknown[0]} is not support in @pyflow, it takes {', '.join(_OF_PYFLOW)}")
    if args and (len(args) > 1 or options):
        raise DfTypeError("@pyflow takes options by their names")
    given = checked_options("python", options)
    return _decorated(args[0], given) if args else lambda target: _decorated(target, given)


def checked_options(kind: str, options: dict[str, Any]) -> Options:
    """Check the arguments of a decorator.

    Raises:
        DfTypeError: a value is of another type.
        DfException: resources that cannot be.
    """
    hook = options.get("env_hook_func")
    if hook is not None and not callable(hook):
        raise DfTypeError(f"env_hook_func must be a function, got {hook!r}")
    visible = options.get("visible_device_enable", False)
    if not isinstance(visible, bool):
        raise DfTypeError(f"visible_device_enable must be a bool, got {visible!r}")
    batch, wait_ns = check_batch(options.get("batch"), options.get("wait"))
    is_stream = _is_stream(options.get("stream_input"))
    if batch and is_stream:
        raise DfException("batch and stream_input contradict each other: such a function takes inputs by itself")
    return Options(
        kind, options.get("num_returns"), check_resources(options.get("resources")), hook, visible,
        is_stream, options.get("choice_output"), check_instances(options.get("instances", 1)), batch, wait_ns,
    )  # fmt: skip


def _is_stream(stream_input: Any) -> bool:
    if stream_input is None:
        return False
    if stream_input != "Queue":
        raise DfTypeError(f'stream_input must be "Queue", got {stream_input!r}')
    return True


def _decorated(target: Any, options: Options) -> Any:
    if inspect.isclass(target):
        if options.stream_input or options.choice is not None:
            raise DfTypeError("stream_input and choice_output of a class are options of its methods: @method(...)")
        return decorate_class(target, options, actor_fnode)
    if not inspect.isfunction(target):
        raise DfTypeError(f"@pyflow decorates a function or a class, got {type(target).__name__}")
    return decorate_function(target, options)


def method(*args: Any, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a method of a class that is a stage; with parentheses, `@method()`.

    Args:
        args: none.
        options: num_returns, choice_output and stream_input, see `pyflow`.

    Raises:
        DfAssertionError: an argument without a name, an option that there is not, or a num_returns that cannot be.
        DfTypeError: stream_input is something else.
    """
    unknown = [each for each in options if each not in _OF_METHOD]
    if args or unknown:
        raise DfAssertionError(f"@method() takes only {', '.join(_OF_METHOD)}, by their names")
    given = checked_options("python", options)

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        output_count(function, given.num_returns)
        function._df_method = given  # type: ignore[attr-defined]
        return function

    return decorated

"""`npu_model`: functions and models whose inputs and outputs stay on the device.

For users. It is `pyflow` with tensors on the card: the nodes are made by `python_points`, or, with optimize_level 2,
by `model_export` and `process_points`. The options' names, levels and refusals are those of CANN's dataflow API;
`instances`, `batch` and `wait` are toprope's own. Tests: tests/flow/test_flow_decorators.py,
tests/flow/test_serve_parts.py.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from toprope.flow.data_type import TensorDesc
from toprope.flow.exceptions import DfException, DfTypeError
from toprope.flow.graph.nodes import FlowNode
from toprope.flow.points.decorators import checked_options
from toprope.flow.points.python_points import (
    ActorNode,
    Options,
    actor_fnode,
    decorate_class,
    decorate_function,
    local,
    method_functions,
    methods,
    workspace,
)

__all__ = ["npu_model"]

_OF_FUNCTION = (
    "num_returns", "resources", "env_hook_func", "visible_device_enable", "instances", "batch", "wait",
)  # fmt: skip
_OF_CLASS = (*_OF_FUNCTION, "optimize_level", "input_descs")


def npu_model(*args: Any, **options: Any) -> Any:
    """Decorate a function or a class, usually an nn.Module: `fnode()` makes a stage whose tensors are on the device.

    Its inputs are torch tensors on the stage's device, and it must return such; nothing is copied between stages on
    one card. At optimize_level 2 the model is exported (torch.export) and runs without the user's Python.

    Args:
        args: the function or class, if the decorator is used without parentheses.
        options: num_returns, resources, env_hook_func, visible_device_enable, instances, wait: see `pyflow`.
            batch: most rows of one call: inputs are joined along their first axis, and results are split along it.
            optimize_level: of a class: 1 (default) or 2.
            input_descs: of a class: for level 2, a TensorDesc for each input; a negative number of a shape stands for
                any.

    Raises:
        DfTypeError: an option that does not belong there, or something that is neither function nor class.
        DfAssertionError: num_returns cannot be.
        ImportError: torch is not installed.
    """
    import torch  # noqa: F401 - not there is an error here, and not in a stage

    if args and (len(args) > 1 or options):
        raise DfTypeError("@npu_model takes options by their names")
    if args:
        return _decorated(args[0], {})
    return lambda target: _decorated(target, options)


def _decorated(target: Any, options: dict[str, Any]) -> Any:
    if inspect.isclass(target):
        _check_names(options, _OF_CLASS, "class")
        for each in methods(target):
            name = "stream_input" if each.options.stream_input else "choice_output"
            if each.options.stream_input or each.options.choice is not None:
                raise DfTypeError(f"param:{name} is not support in a method of a class that @npu_model decorates")
        level, descs = options.get("optimize_level", 1), options.get("input_descs")
        if options.get("batch") is not None:
            _check_rows(target.__name__, descs)
        return decorate_class(target, _checked(options), functools.partial(_class_fnode, level, descs))
    if not inspect.isfunction(target):
        raise DfTypeError(f"@npu_model decorates a function or a class, got {type(target).__name__}")
    _check_names(options, _OF_FUNCTION, "function")
    return decorate_function(target, _checked(options))


def _check_rows(name: str, descs: Any) -> None:
    """Refuse batches for inputs whose number of rows is fixed.

    Raises:
        DfException: one is.
    """
    for place, each in enumerate(descs if isinstance(descs, list | tuple) else ()):
        if isinstance(each, TensorDesc) and (not each.shape or each.shape[0] >= 0):
            raise DfException(
                f"{name} has batch, and input {place} of it has the fixed shape {each.shape}: the first number of a "
                "shape must be -1 to take the rows of several requests"
            )


def _check_names(options: dict[str, Any], known: tuple[str, ...], what: str) -> None:
    for each in options:
        if each not in known:
            takes = ", ".join(known)
            raise DfTypeError(f"param:{each} is not support in @npu_model of a {what}, it takes {takes}")


def _checked(options: dict[str, Any]) -> Options:
    return checked_options(
        "npu", {name: value for name, value in options.items() if name not in ("optimize_level", "input_descs")}
    )


def _class_fnode(
    level: Any, descs: Any, cls: type, options: Options, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> FlowNode:
    if not isinstance(level, int):
        raise DfTypeError(f"optimize_level must be a number, got {level!r}")
    if level not in (1, 2):
        raise DfTypeError(f"optimize_level:{level} is not support in @npu_model.")
    if level == 1:
        return actor_fnode(cls, options, args, kwargs)
    if not isinstance(descs, list | tuple) or not descs or not all(isinstance(each, TensorDesc) for each in descs):
        raise DfTypeError(f"optimize_level 2 needs input_descs, a list of TensorDesc, got {descs!r}")
    return _exported_fnode(cls, options, args, kwargs, list(descs))


def _exported_fnode(
    cls: type, options: Options, args: tuple[Any, ...], kwargs: dict[str, Any], descs: list[TensorDesc]
) -> FlowNode:
    from toprope.flow.points.model_export import export_model
    from toprope.flow.points.process_points import ProgramPoint

    functions = method_functions(cls, options)
    if len(functions) != 1:
        names = ", ".join(each.name for each in functions)
        raise DfException(f"optimize_level 2 exports forward alone, {cls.__name__} has the methods {names}")
    if len(descs) != len(functions[0].inputs):
        raise DfException(f"{cls.__name__} has {len(functions[0].inputs)} inputs, input_descs has {len(descs)}")
    node = ActorNode(f"{cls.__name__}_fnode", functions)
    node.attrs["_npu_sched_model"] = 1
    folder = workspace(node)
    path = export_model(local(cls, *args, **kwargs), descs, folder, len(functions[0].outputs))
    node.add_process_point(ProgramPoint(path, options, functions))
    return node

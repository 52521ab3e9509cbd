"""Stages that run model files: programs of torch.export, and ONNX by onnxruntime.

`process_points` calls it for the file of a `GraphProcessPoint`, `closures` for a model that a function runs. The
formats and how they are loaded belong to PyTorch and onnxruntime; inputs and outputs are taken in the file's order.
Tests: tests/flow/test_flow_onnx.py, tests/flow/test_flow_func.py.
"""

from __future__ import annotations

import importlib.util
from typing import Any

from toprope.extras import advice
from toprope.flow import running
from toprope.flow.exceptions import FAILED, DfException
from toprope.flow.points.python_points import stage_object
from toprope.flow.stage.spec import StageContext, StageObject
from toprope.flow.tensor import Tensor

__all__ = ["check_onnx", "load_onnx", "load_program", "onnx_stage", "program_stage"]

_REMOTE = ("AzureExecutionProvider",)
"""Providers of onnxruntime that run nothing here."""


def program_stage(path: str, name: str, context: StageContext) -> StageObject:
    """The stage of an exported program."""
    running.enter(context)
    return stage_object(context, {name: load_program(path, context.device)})


def load_program(path: str, where: str) -> Any:
    """An exported program as a function of tensors on a device.

    Args:
        path: the file.
        where: the device; "" leaves it where it was exported.
    """
    import torch
    from torch.export.passes import move_to_device_pass

    program = torch.export.load(path)
    if where and where != "cpu":
        program = move_to_device_pass(program, where)
    module = program.module()

    def run(*tensors: torch.Tensor) -> Any:
        with torch.no_grad():
            result = module(*tensors)
        if isinstance(result, list | tuple):
            return result[0] if len(result) == 1 else tuple(result)
        return result

    return run


def check_onnx() -> None:
    """Refuse ONNX files where nothing can run them.

    Raises:
        DfException: onnxruntime is not installed.
    """
    if importlib.util.find_spec("onnxruntime") is None:
        raise DfException(f"ONNX files need onnxruntime, which is not installed: {advice('onnx')}")


def onnx_stage(path: str, context: StageContext) -> StageObject:
    """The stage of an ONNX file."""
    running.enter(context)
    return stage_object(context, {"run": load_onnx(path)})


def load_onnx(path: str) -> Any:
    """An ONNX file as a function of `Tensor`s; the inputs and outputs are taken in the file's order.

    Raises:
        DfException: onnxruntime cannot load it.
    """
    import numpy
    import onnxruntime  # type: ignore[import-not-found, import-untyped, unused-ignore]

    options = onnxruntime.SessionOptions()
    # its threads would keep the cores busy between two inputs, and other stages need them
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    providers = [each for each in onnxruntime.get_available_providers() if each not in _REMOTE]
    try:
        session = onnxruntime.InferenceSession(path, options, providers=providers)
    except Exception as error:
        raise DfException(f"onnxruntime cannot load {path}: {error}", FAILED) from error
    names = [each.name for each in session.get_inputs()]

    def run(*values: Any) -> Any:
        if len(values) != len(names):
            raise DfException(f"{path} has {len(names)} inputs, got {len(values)}")
        results = session.run(None, {name: _array(value) for name, value in zip(names, values, strict=True)})
        others = [type(each).__name__ for each in results if not isinstance(each, numpy.ndarray)]
        if others:
            raise DfException(f"{path} has outputs that are no tensors: {', '.join(others)}")
        tensors = tuple(Tensor.over(each) for each in results)
        return tensors[0] if len(tensors) == 1 else tensors

    return run


def _array(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.numpy()
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value

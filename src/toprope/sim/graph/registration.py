"""The names of backends that torch.compile knows where torch_npu is installed: "npu" and "npugraph_ex"."""

from __future__ import annotations

from typing import Any

from toprope.imports import after_import

__all__ = ["register"]


def register() -> None:
    """Makes the names known as soon as a program uses the compiler; importing it takes seconds."""
    after_import("torch._dynamo.backends.registry", _register)


def _register() -> None:
    from torch._dynamo.backends.registry import register_backend

    register_backend(_npu, "npu")
    register_backend(_npugraph_ex, "npugraph_ex")


def _npu(module: Any, inputs: Any, **options: Any) -> Any:
    return _backend("max-autotune")(module, inputs, **options)


def _npugraph_ex(module: Any, inputs: Any, **options: Any) -> Any:
    return _backend("npugraph_ex")(module, inputs, **options)


def _backend(mode: str) -> Any:
    from toprope.sim.graph.backend import get_npu_backend
    from toprope.sim.graph.config import CompilerConfig

    config = CompilerConfig()
    config.mode = mode
    return get_npu_backend(compiler_config=config)

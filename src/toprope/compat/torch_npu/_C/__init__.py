"""`torch_npu._C`: of the compiled part of torch_npu only what programs ask for by name."""

from typing import NoReturn

from . import _distributed_c10d

__all__ = ["_distributed_c10d"]


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__"):
        raise AttributeError(f"module 'torch_npu._C' has no attribute {name!r}", name=name)
    raise AttributeError(f"toprope's facade of torch_npu does not have torch_npu._C.{name}", name=name)

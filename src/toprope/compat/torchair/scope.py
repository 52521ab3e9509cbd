"""`torchair.scope`: contexts around operators of a compiled model."""

from typing import NoReturn

from toprope.sim.graph import limit_core_num, npu_stream_switch, op_never_timeout, super_kernel

__all__ = ["limit_core_num", "npu_stream_switch", "op_never_timeout", "super_kernel"]

_REAL = ("data_dump", "deterministic", "npu_wait_tensor")


def __getattr__(name: str) -> NoReturn:
    text = f"module 'torchair.scope' has no attribute {name!r}"
    if name in _REAL:
        text = f"toprope's facade of torchair does not have torchair.scope.{name}: the real one has it, toprope not yet"
    raise AttributeError(text, name=name)

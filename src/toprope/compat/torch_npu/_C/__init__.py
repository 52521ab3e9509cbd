"""`torch_npu._C`: of the compiled part of torch_npu only what programs ask for by name."""

from toprope.compat.missing import missing_from

from . import _distributed_c10d

__all__ = ["_distributed_c10d"]

__getattr__ = missing_from(__name__)

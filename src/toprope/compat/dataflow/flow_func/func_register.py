"""The register of functions under its own module's name."""

from toprope.compat.missing import missing_from
from toprope.flow.udf.func_register import FlowFuncInfos, FlowFuncRegister

__all__ = ["FlowFuncInfos", "FlowFuncRegister"]

__getattr__ = missing_from(__name__)

"""Facade module `dataflow.flow_func.func_register`: the registry of stage functions of toprope.flow.

Programs import it by this name, which is the vendor's, and so are the names in it; what they do is changed in
toprope.flow.udf.func_register. Tests: tests/flow/test_flow_func.py.
"""

from toprope.compat.missing import missing_from
from toprope.flow.udf.func_register import FlowFuncInfos, FlowFuncRegister

__all__ = ["FlowFuncInfos", "FlowFuncRegister"]

__getattr__ = missing_from(__name__)

"""Facade module `dataflow.flow_func.func_wrapper`: the decorators of stage functions of toprope.flow.

Programs import it by this name, which is the vendor's, and so are the names in it; what they do is changed in
toprope.flow.udf.flow_func. Tests: tests/flow/test_flow_func.py.
"""

from toprope.compat.missing import missing_from
from toprope.flow.udf.flow_func import init_wrapper, proc_wrapper

__all__ = ["init_wrapper", "proc_wrapper"]

__getattr__ = missing_from(__name__)

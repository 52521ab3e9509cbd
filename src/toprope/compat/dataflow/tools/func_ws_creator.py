"""Facade module `dataflow.tools.func_ws_creator`: the class behind `create_func_ws`, from toprope.flow.

Programs import it by this name, which is the vendor's, and so are the names in it; what they do is changed in
toprope.flow.points.template. Tests: tests/flow/test_flow_func.py.
"""

from toprope.compat.missing import missing_from
from toprope.flow.points.template import FuncWsCreator

__all__ = ["FuncWsCreator"]

__getattr__ = missing_from(__name__)

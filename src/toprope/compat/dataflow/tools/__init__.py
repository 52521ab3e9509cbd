"""Facade package `dataflow.tools`: the generator of a folder for a class of stage functions.

Programs import it by this name. The names are DataFlow's; what they do is changed in toprope.flow.points.template.
Tests: tests/compat/test_vendor_names.py, tests/flow/test_flow_func.py.
"""

from toprope.compat.missing import missing_from
from toprope.flow.points.template import FuncWsCreator

__all__ = ["FuncWsCreator"]

__getattr__ = missing_from(__name__)

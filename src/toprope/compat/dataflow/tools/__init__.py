"""Facade package `dataflow.tools`: the generator of a folder for a class of stage functions.

Programs import it by this name. Its names are the vendor's; tests/compat/test_vendor_names.py compares them.
"""

from toprope.compat.missing import missing_from
from toprope.flow.points.template import FuncWsCreator

__all__ = ["FuncWsCreator"]

__getattr__ = missing_from(__name__)

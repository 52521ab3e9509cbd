"""Facade package `dataflow.flow_func`: base class and decorators of stage functions, from toprope.flow.udf.flow_func.

Programs import it by this name. The names are DataFlow's; what they do is changed in toprope.flow.udf.flow_func.
Tests: tests/compat/test_vendor_names.py, tests/flow/test_flow_func.py.
"""

from toprope.compat.missing import missing_from
from toprope.flow.udf.flow_func import *  # noqa: F403 - the names are those of the module
from toprope.flow.udf.flow_func import __all__ as __all__

__getattr__ = missing_from(__name__)

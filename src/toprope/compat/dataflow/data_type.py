"""Facade module `dataflow.data_type`: the dtypes of toprope.flow under the vendor's module name.

Programs import it by this name. The names are DataFlow's; what they are is changed in toprope.flow.data_type.
Tests: tests/compat/test_vendor_names.py, tests/flow/test_flow_func.py.
"""

from toprope.compat.missing import missing_from
from toprope.flow.data_type import *  # noqa: F403 - a door
from toprope.flow.data_type import __all__ as __all__

__getattr__ = missing_from(__name__)

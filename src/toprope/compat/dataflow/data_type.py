"""Facade module `dataflow.data_type`: the dtypes of toprope.flow under the vendor's module name.

Programs import it by this name. Its names are the vendor's; tests/compat/test_vendor_names.py compares them.
"""

from toprope.compat.missing import missing_from
from toprope.flow.data_type import *  # noqa: F403 - a door
from toprope.flow.data_type import __all__ as __all__

__getattr__ = missing_from(__name__)

"""Facade module `dataflow.flow_func.flow_func`: the same names as the package, where DataFlow defines them.

Programs import it by this name. The names are DataFlow's; what they do is changed in toprope.flow.udf.flow_func.
tests/compat/test_vendor_names.py compares the names.
"""

from toprope.compat.missing import missing_from
from toprope.flow.udf.flow_func import *  # noqa: F403 - the names are those of the module
from toprope.flow.udf.flow_func import __all__ as __all__

__getattr__ = missing_from(__name__)

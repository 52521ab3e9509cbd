"""The same interface under the name of the module that has it in DataFlow."""

from toprope.compat.missing import missing_from
from toprope.flow.udf.flow_func import *  # noqa: F403 - the names are those of the module
from toprope.flow.udf.flow_func import __all__ as __all__

__getattr__ = missing_from(__name__)

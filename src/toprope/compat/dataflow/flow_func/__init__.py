"""The interface of functions that see messages: toprope.flow.udf.flow_func under its other name."""

from toprope.compat.missing import missing_from
from toprope.flow.udf.flow_func import *  # noqa: F403 - the names are those of the module
from toprope.flow.udf.flow_func import __all__ as __all__

__getattr__ = missing_from(__name__)

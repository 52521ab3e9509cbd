"""yr.fcc: function groups."""

from toprope.compat.missing import missing_from
from toprope.functions.api import function_groups
from toprope.functions.api.function_groups import *  # noqa: F403 - all of them

__all__ = function_groups.__all__

__getattr__ = missing_from(__name__)

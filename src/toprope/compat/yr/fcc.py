"""yr.fcc: function groups."""

from toprope.compat.missing import missing_from
from toprope.functions import fcc
from toprope.functions.fcc import *  # noqa: F403 - all of them

__all__ = fcc.__all__

__getattr__ = missing_from(__name__)

"""yr.fcc: function groups."""

from toprope.functions import fcc
from toprope.functions.fcc import *  # noqa: F403 - all of them

__all__ = fcc.__all__

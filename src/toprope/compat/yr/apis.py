"""yr.apis: the calls, under the name of the module that has them in openYuanrong."""

from toprope import functions
from toprope.compat.missing import missing_from
from toprope.functions import *  # noqa: F403 - the names are those of the package

__all__ = functions.__all__

__getattr__ = missing_from(__name__)

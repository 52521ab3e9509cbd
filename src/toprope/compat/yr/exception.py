"""yr.exception: the exceptions, under the name of the module that has them in openYuanrong."""

from toprope.compat.missing import missing_from
from toprope.functions import exceptions
from toprope.functions.exceptions import *  # noqa: F403 - all of them

__all__ = exceptions.__all__

__getattr__ = missing_from(__name__)

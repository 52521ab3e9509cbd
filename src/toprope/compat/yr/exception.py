"""Facade module `yr.exception`: exceptions of toprope.functions, under the module that defines them in openYuanrong.

Programs import it by this name. Its names are the vendor's; tests/compat/test_vendor_names.py compares them.
"""

from toprope.compat.missing import missing_from
from toprope.functions import exceptions
from toprope.functions.exceptions import *  # noqa: F403 - all of them

__all__ = exceptions.__all__

__getattr__ = missing_from(__name__)

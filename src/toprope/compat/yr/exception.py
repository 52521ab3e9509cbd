"""Facade module `yr.exception`: exceptions of toprope.functions, under the module that defines them in openYuanrong.

Programs import it by this name. The names are openYuanrong's; what they do is changed in toprope.functions.exceptions.
tests/compat/test_vendor_names.py compares the names.
"""

from toprope.compat.missing import missing_from
from toprope.functions import exceptions
from toprope.functions.exceptions import *  # noqa: F403 - all of them

__all__ = exceptions.__all__

__getattr__ = missing_from(__name__)

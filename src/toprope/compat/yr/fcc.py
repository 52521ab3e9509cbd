"""Facade module `yr.fcc`: function groups of toprope.functions.

Programs import it by this name. The names are openYuanrong's; what they do is changed in
toprope.functions.api.function_groups. tests/compat/test_vendor_names.py compares the names.
"""

from toprope.compat.missing import missing_from
from toprope.functions.api import function_groups
from toprope.functions.api.function_groups import *  # noqa: F403 - all of them

__all__ = function_groups.__all__

__getattr__ = missing_from(__name__)

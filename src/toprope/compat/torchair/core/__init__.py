"""Facade package `torchair.core`: of the real package, `utils` alone.

Programs import it by this name, which is the vendor's, and so are the names in it. Tests:
tests/compat/test_torchair_facade.py.
"""

from toprope.compat.missing import missing_from

from . import utils

__all__ = ["utils"]

__getattr__ = missing_from(__name__)

"""`torchair.core`: of the real package, `utils` alone."""

from toprope.compat.missing import missing_from

from . import utils

__all__ = ["utils"]

__getattr__ = missing_from(__name__)

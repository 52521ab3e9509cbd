"""yr.generator: the results of generators."""

from toprope.compat.missing import missing_from
from toprope.functions import ObjectRefGenerator

__all__ = ["ObjectRefGenerator"]

__getattr__ = missing_from(__name__)

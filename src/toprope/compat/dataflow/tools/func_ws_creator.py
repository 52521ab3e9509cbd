"""The creator of a class's folder under its own module's name."""

from toprope.compat.missing import missing_from
from toprope.flow.points.template import FuncWsCreator

__all__ = ["FuncWsCreator"]

__getattr__ = missing_from(__name__)

"""Tools that are started with `python -m dataflow.tools...`, and the class behind them."""

from toprope.compat.missing import missing_from
from toprope.flow.points.template import FuncWsCreator

__all__ = ["FuncWsCreator"]

__getattr__ = missing_from(__name__)

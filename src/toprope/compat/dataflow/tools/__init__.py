"""Tools that are started with `python -m dataflow.tools...`."""

from toprope.compat.missing import missing_from

__getattr__ = missing_from(__name__)

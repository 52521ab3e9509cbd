"""Plugins of DataFlow: that for torch."""

from toprope.compat.missing import missing_from

__getattr__ = missing_from(__name__)

"""yr.decorator: what the decorators make, under the names of the modules that have it in openYuanrong."""

from toprope.compat.missing import missing_from

from . import instance_proxy

__all__ = ["instance_proxy"]

__getattr__ = missing_from(__name__)

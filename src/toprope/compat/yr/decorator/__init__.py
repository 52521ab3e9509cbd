"""Facade package `yr.decorator`: the objects that the decorators of toprope.functions return.

Programs import it by this name. Its names are the vendor's; tests/compat/test_vendor_names.py compares them.
"""

from toprope.compat.missing import missing_from

from . import instance_proxy

__all__ = ["instance_proxy"]

__getattr__ = missing_from(__name__)

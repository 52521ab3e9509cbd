"""Facade package `yr.decorator`: the objects that the decorators of toprope.functions return.

Programs import it by this name. It holds the vendor's modules that programs name, so far one of them.
tests/compat/test_vendor_names.py compares the names.
"""

from toprope.compat.missing import missing_from

from . import instance_proxy

__all__ = ["instance_proxy"]

__getattr__ = missing_from(__name__)

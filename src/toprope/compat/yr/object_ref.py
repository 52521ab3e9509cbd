"""Facade module `yr.object_ref`: references to results (`ObjectRef`), from toprope.functions.

Programs import it by this name. Its names are the vendor's; tests/compat/test_vendor_names.py compares them.
"""

from toprope.compat.missing import missing_from
from toprope.functions import ObjectRef

__all__ = ["ObjectRef"]

__getattr__ = missing_from(__name__)

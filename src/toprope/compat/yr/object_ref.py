"""Facade module `yr.object_ref`: references to results (`ObjectRef`), from toprope.functions.

Programs import it by this name. The names are openYuanrong's; what they do is changed in toprope.functions.objects.
tests/compat/test_vendor_names.py compares the names.
"""

from toprope.compat.missing import missing_from
from toprope.functions import ObjectRef

__all__ = ["ObjectRef"]

__getattr__ = missing_from(__name__)

"""yr.object_ref: references to results."""

from toprope.compat.missing import missing_from
from toprope.functions import ObjectRef

__all__ = ["ObjectRef"]

__getattr__ = missing_from(__name__)

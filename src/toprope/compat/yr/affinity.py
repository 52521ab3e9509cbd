"""Facade module `yr.affinity`: placement rules of instances, from toprope.functions.

Programs import it by this name. The names are openYuanrong's; what they do is changed in toprope.functions.options.
tests/compat/test_vendor_names.py compares the names.
"""

from toprope.compat.missing import missing_from
from toprope.functions import Affinity, AffinityKind, AffinityScope, AffinityType, LabelOperator, OperatorType

__all__ = ["Affinity", "AffinityKind", "AffinityScope", "AffinityType", "LabelOperator", "OperatorType"]

__getattr__ = missing_from(__name__)

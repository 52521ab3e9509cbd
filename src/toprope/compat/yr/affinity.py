"""yr.affinity: where instances go."""

from toprope.compat.missing import missing_from
from toprope.functions import Affinity, AffinityKind, AffinityScope, AffinityType, LabelOperator, OperatorType

__all__ = ["Affinity", "AffinityKind", "AffinityScope", "AffinityType", "LabelOperator", "OperatorType"]

__getattr__ = missing_from(__name__)

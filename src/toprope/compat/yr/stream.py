"""yr.stream: streams, which toprope does not have: using them raises NotImplementedError."""

from toprope.compat.missing import missing_from
from toprope.functions import Element, ProducerConfig, SubscriptionConfig  # type: ignore[attr-defined]

__all__ = ["Element", "ProducerConfig", "SubscriptionConfig"]

__getattr__ = missing_from(__name__)

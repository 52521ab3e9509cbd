"""Facade module `yr.stream`: classes of openYuanrong's streams; using one raises NotImplementedError.

Programs import it by this name; toprope has no streams of this kind. The names are openYuanrong's; what they say is
changed in toprope.functions.api.unavailable. tests/compat/test_vendor_names.py compares the names.
"""

from toprope.compat.missing import missing_from
from toprope.functions import Element, ProducerConfig, SubscriptionConfig  # type: ignore[attr-defined]

__all__ = ["Element", "ProducerConfig", "SubscriptionConfig"]

__getattr__ = missing_from(__name__)

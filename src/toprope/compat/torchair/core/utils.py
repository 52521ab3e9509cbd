"""Facade module `torchair.core.utils`: torchair's logger, which programs set to a level.

Programs import it by this name. Its names are the vendor's; tests/compat/test_vendor_names.py compares them.
"""

import logging

from toprope.compat.missing import missing_from

__all__ = ["EVENT_LEVEL", "logger"]

EVENT_LEVEL = 35
"""Level of torchair's own events, between WARNING and ERROR."""

logging.addLevelName(EVENT_LEVEL, "EVENT")
logger = logging.getLogger("torchair")

__getattr__ = missing_from(__name__)

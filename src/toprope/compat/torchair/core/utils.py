"""`torchair.core.utils`: the logger that programs import from here."""

import logging

from toprope.compat.missing import missing_from

__all__ = ["EVENT_LEVEL", "logger"]

EVENT_LEVEL = 35
"""Level of torchair's own events, between WARNING and ERROR."""

logging.addLevelName(EVENT_LEVEL, "EVENT")
logger = logging.getLogger("torchair")

__getattr__ = missing_from(__name__)

"""What the user is told while an engine works: what is done, and what was done otherwise than asked for."""

from __future__ import annotations

import logging
from collections.abc import Callable

__all__ = ["Notices"]

_log = logging.getLogger("toprope")


class Notices:
    """Tells and keeps notices.

    Args:
        progress: told every sentence; None for nobody.

    Attributes:
        kept: the notices of this edit.
    """

    def __init__(self, progress: Callable[[str], None] | None = None) -> None:
        self._progress = progress
        self.kept: list[str] = []

    def tell(self, text: str) -> None:
        """Say what is done now, as a sentence without a full stop."""
        if self._progress is not None:
            self._progress(text)

    def notice(self, text: str) -> None:
        """Say what is done otherwise than asked for: also in the log, and in the record of the edit."""
        self.kept.append(text)
        _log.warning("%s", text)
        self.tell(text)

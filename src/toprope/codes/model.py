"""Data classes of the catalogue: an explanation of a code, its sources, and a place where a code was seen.

Public through `toprope.codes`. catalogue.py fills them from the TOML files, messages.py from logs, `toprope doctor`
prints them, also as JSON with these names. Tests: tests/base/test_codes.py.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Explanation", "Seen", "Source"]


@dataclass(frozen=True)
class Source:
    """A public page or thread that a meaning was read from.

    Attributes:
        id: its name in sources.toml.
        url: where it is.
        what: what it is.
        read: the day it was read, as YYYY-MM-DD.
    """

    id: str
    url: str
    what: str
    read: str


@dataclass(frozen=True)
class Explanation:
    """The meaning of a code or a message.

    Attributes:
        code: the code as the vendor writes it; for a message without a code, our short name of it.
        name: the vendor's constant; empty where there is none or it is not known.
        means: one sentence without a full stop.
        causes: the usual ones, the likeliest first.
        try_: what to do, in this order.
        sources: where it was read, the vendor's pages first.
        of_its_own: False where the code has no entry and this is only what its family means.
        order: 0 for a cause, 1 for a wait for something that failed elsewhere, 2 for a report that something failed.
        open: the code does not say the cause: `causes` are possible ones, and the text next to the code decides.
        reason: the reason that the log itself gives next to the code; empty where it gives none.
    """

    code: str
    name: str
    means: str
    causes: tuple[str, ...]
    try_: tuple[str, ...]
    sources: tuple[Source, ...]
    of_its_own: bool = True
    order: int = 0
    open: bool = False
    reason: str = ""


@dataclass(frozen=True)
class Seen:
    """An explanation of something in a log.

    Attributes:
        what: the explanation.
        line: number of the first line with it, from 1.
        count: number of lines with it.
        text: that first line, shortened.
    """

    what: Explanation
    line: int
    count: int
    text: str

"""A finding of `toprope doctor`: a problem or a remark, with advice.

Made by `diagnosis` and the modules of checks, also by `images.doctor`; written by `cli.output.doctor_text`. Fields and
the names of findings are an interface for programs that read the JSON: they stay. Tests: tests/device/test_doctor.py,
tests/device/test_doctor_cli.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Finding"]


@dataclass(frozen=True)
class Finding:
    """A finding of `toprope doctor`.

    Attributes:
        name: a short name that stays the same, for programs: "cann-not-loaded".
        what: description of the problem, in whole sentences.
        do: steps of the advice, in order.
        looked_at: the facts that it rests on, where `what` does not say them.
        sources: public pages and threads about it.
        problem: True if it keeps programs from working; False for a remark.
    """

    name: str
    what: str
    do: tuple[str, ...] = ()
    looked_at: str = ""
    sources: tuple[str, ...] = ()
    problem: bool = True

    def as_dict(self) -> Mapping[str, Any]:
        """The finding as plain data, ready for JSON."""
        return asdict(self)

"""Meaning of codes and lines of a log for core limits: its cause, and what to do; pure.

For `toprope cores explain`. The data is diagnosis.toml, each entry with its sources: codes and lines are the vendor's,
and a new symptom is added there alone. Tests: tests/cli/test_cli_cores.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

__all__ = ["Seen", "Symptom", "of_code", "seen_in", "symptoms"]


@dataclass(frozen=True, slots=True)
class Symptom:
    """Something that a card or HCCL says when core limits are wrong or missing.

    Attributes:
        name: our short name of it.
        codes: the vendor's codes that it goes with.
        means: one sentence without a full stop.
        causes: the usual ones, the likeliest first.
        try_: what to do, in this order.
        sources: public pages and threads that it was read from.
        patterns: pieces of log lines, regular expressions.
    """

    name: str
    codes: tuple[str, ...]
    means: str
    causes: tuple[str, ...]
    try_: tuple[str, ...]
    sources: tuple[str, ...]
    patterns: tuple[re.Pattern[str], ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """A symptom that was found in a log, with its first line.

    Attributes:
        symptom: which.
        line: number of the first line that shows it, from 1.
        text: that line.
        count: how many lines do.
    """

    symptom: Symptom
    line: int
    text: str
    count: int


def symptoms() -> tuple[Symptom, ...]:
    """All symptoms that diagnosis.toml has."""
    return _shipped()


def of_code(code: str) -> Symptom | None:
    """Meaning of a code for core limits; None where nothing is known of it."""
    wanted = code.strip().upper()
    return next((each for each in _shipped() if wanted in each.codes), None)


def seen_in(lines: Iterable[str]) -> tuple[Seen, ...]:
    """Symptoms in the lines of a log, in their order, each once."""
    found: dict[str, Seen] = {}
    for number, line in enumerate(lines, 1):
        for symptom in _shipped():
            codes = [rf"(?<![A-Za-z0-9_.]){code}(?![A-Za-z0-9_])(?!\.\d)" for code in symptom.codes]
            if not any(pattern.search(line) for pattern in symptom.patterns) and not any(
                re.search(code, line) for code in codes
            ):
                continue
            known = found.get(symptom.name)
            first = Seen(symptom, number, line.strip(), 0) if known is None else known
            found[symptom.name] = Seen(symptom, first.line, first.text, first.count + 1)
    return tuple(sorted(found.values(), key=lambda each: each.line))


@cache
def _shipped() -> tuple[Symptom, ...]:
    import tomllib
    from importlib import resources

    data: dict[str, Any] = tomllib.loads(
        resources.files("toprope.cores").joinpath("diagnosis.toml").read_text(encoding="utf-8")
    )
    return tuple(
        Symptom(
            each["name"],
            tuple(each["codes"]),
            each["means"],
            tuple(each["causes"]),
            tuple(each["try"]),
            tuple(data["sources"][source]["url"] for source in each["sources"]),
            tuple(re.compile(pattern, re.IGNORECASE) for pattern in each["patterns"]),
        )
        for each in data["symptom"]
    )

"""`toprope cores explain`: codes and logs, and what they have to do with core limits.

Called by `cli.cores`. What a code means in general is in `toprope.codes`, what it has to do with streams and cores in
`cores.diagnosis`; here words are kept apart (code, file, line of a log) and the answers laid out. The keys of
`as_dicts` are the command's JSON. Tests: tests/cli/test_cli_cores.py.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from toprope.codes import Explanation
from toprope.codes import explain as explain_code
from toprope.cores.diagnosis import Seen, Symptom, of_code, seen_in, symptoms
from toprope.errors import UsageError
from toprope.terminal import WIDTH, field

__all__ = ["Found", "as_dicts", "look_up", "text"]


@dataclass(frozen=True)
class Found:
    """Something that was asked for, or is in a log.

    Attributes:
        code: the vendor's code with what is known of it in general; None for a line of a log without one.
        symptom: what it says about core limits; None where it says nothing.
        seen: where in which log; None where a code was given.
        log: the log's name.
    """

    code: Explanation | None
    symptom: Symptom | None
    seen: Seen | None = None
    log: str = ""


def look_up(words: Sequence[str]) -> list[Found]:
    """Explain codes, lines and logs; without any, everything that is known.

    Raises:
        UsageError: a word is no code, no file, and no line of a log that is known here.
    """
    if not words:
        return [Found(None, each) for each in symptoms()]
    found: list[Found] = []
    for word in words:
        if word == "-":
            found += _in_log(sys.stdin.read(), "stdin")
        elif Path(word).is_file():
            found += _in_log(_read(Path(word)), word)
        elif any(letter.isspace() for letter in word.strip()):
            found += _in_log(word, "the text")
        else:
            found.append(Found(explain_code(word), of_code(word.strip().strip(":;,."))))
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None


def _in_log(log: str, name: str) -> list[Found]:
    seen = seen_in(log.splitlines())
    if not seen:
        raise UsageError(
            f"nothing in {name} is known to have to do with core limits.",
            looked_at=f"{len(log.splitlines())} lines, {len(symptoms())} symptoms",
            do="give the whole log of the rank that failed first; toprope doctor explains other codes",
        )
    return [Found(None, each.symptom, each, name) for each in seen]


def text(found: Sequence[Found]) -> Group:
    """The explanations for a reader, a paragraph each."""
    items: list[RenderableType] = []
    for each in found:
        items += ["", *_paragraph(each)] if items else _paragraph(each)
    return Group(*items)


def _paragraph(found: Found) -> list[RenderableType]:
    """Lay out one explanation: the code, the line of the log, causes, what to try, sources."""
    items: list[RenderableType] = []
    code, symptom = found.code, found.symptom
    if code is not None:
        items += _row(code.code, code.means)
    if found.seen is not None:
        more = f" ({found.seen.count} lines)" if found.seen.count > 1 else ""
        items += _row("seen", f"{found.log}, line {found.seen.line}{more}: {found.seen.text[:160]}")
    if symptom is None:
        items += _row("cores", "it has nothing to do with core limits, as far as is known")
        causes, tries = (code.causes, code.try_) if code is not None else ((), ())
        sources = tuple(source.url for source in code.sources) if code is not None else ()
    else:
        label = "cores" if items else " ".join(symptom.codes) or "a log says"
        items += _row(label, symptom.means)
        causes, tries, sources = symptom.causes, symptom.try_, symptom.sources
    return [*items, *_row("causes", *causes), *_row("try", *tries), *_row("source", *sources)]


def _row(label: str, *texts: str) -> list[RenderableType]:
    return field(Text(label, "bold"), *texts, width=WIDTH)


def as_dicts(found: Sequence[Found]) -> list[dict[str, Any]]:
    """The same as plain data."""
    return [
        {
            "code": None if each.code is None else each.code.code,
            "means": None if each.code is None else each.code.means,
            "symptom": None if each.symptom is None else _as_dict(each.symptom),
            "seen": None
            if each.seen is None
            else {"log": each.log, "line": each.seen.line, "text": each.seen.text, "count": each.seen.count},
        }
        for each in found
    ]


def _as_dict(symptom: Symptom) -> dict[str, Any]:
    return {
        "name": symptom.name,
        "codes": list(symptom.codes),
        "means": symptom.means,
        "causes": list(symptom.causes),
        "try": list(symptom.try_),
        "sources": list(symptom.sources),
    }

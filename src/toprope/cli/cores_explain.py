"""`toprope cores explain`: codes and logs, and what they have to do with core limits."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toprope.codes import Explanation
from toprope.codes import explain as explain_code
from toprope.cores.symptoms import Seen, Symptom, of_code, seen_in, symptoms
from toprope.errors import UsageError

__all__ = ["Found", "as_dicts", "look_up", "text"]

_LABEL, _WIDTH = 10, 100
_BOLD = "1"


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
    """What is known of codes, of lines and of logs; of everything without any.

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


def text(found: Sequence[Found], *, colour: bool = False) -> str:
    """What was found for a reader, a paragraph each."""
    return "\n".join("".join(f"{line}\n" for line in _paragraph(each, colour)) for each in found)


def _paragraph(found: Found, colour: bool) -> list[str]:
    lines: list[str] = []
    if found.code is not None:
        lines += _row(found.code.code, found.code.means, colour)
    if found.seen is not None:
        more = f" ({found.seen.count} lines)" if found.seen.count > 1 else ""
        lines += _row("seen", f"{found.log}, line {found.seen.line}{more}: {found.seen.text[:160]}", colour)
    if found.symptom is None:
        lines += _row("cores", "it has nothing to do with core limits, as far as is known", colour)
        causes, tries = (found.code.causes, found.code.try_) if found.code is not None else ((), ())
        sources = tuple(source.url for source in found.code.sources) if found.code is not None else ()
    else:
        symptom = found.symptom
        label = "cores" if found.code is not None or found.seen is not None else " ".join(symptom.codes) or "a log says"
        if len(label) >= _LABEL:
            lines += [_bold(label, colour), *_row("", symptom.means, colour)]
        else:
            lines += _row(label, symptom.means, colour)
        causes, tries, sources = symptom.causes, symptom.try_, symptom.sources
    for label, texts in (("causes", causes), ("try", tries)):
        for number, each in enumerate(texts):
            lines += _row("" if number else label, each, colour)
    lines += [f"{'' if number else 'source':<{_LABEL}}{url}" for number, url in enumerate(sources)]
    return lines


def _row(label: str, text: str, colour: bool) -> list[str]:
    first, *rest = textwrap.wrap(
        text, _WIDTH, initial_indent=" " * _LABEL, subsequent_indent=" " * _LABEL,
        break_long_words=False, break_on_hyphens=False,
    ) or [""]  # fmt: skip
    return [_bold(label, colour) + " " * (_LABEL - len(label)) + first[_LABEL:], *rest]


def _bold(text: str, colour: bool) -> str:
    return f"\x1b[{_BOLD}m{text}\x1b[0m" if colour and text else text


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

"""Reads the files of codes, and finds what is known of a code or of a message."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toprope.codes.model import Explanation, Source
from toprope.errors import UsageError

__all__ = ["codes", "explain", "in_text"]

FOLDER = Path(__file__).parent
ENTRIES = ("runtime.toml", "letters.toml")

_CODE = re.compile(r"[1-9]\d{5}|E[0-9A-Z]\d{4}|ERR\d{5}")
_LETTERS = re.compile(r"(?<![A-Za-z0-9_])(?:ERR\d{5}|E[A-Z]\d{4}|E[1-9]\d{4})(?![A-Za-z0-9_])")
_DIGITS = re.compile(r"(?<![A-Za-z0-9_.])[1-9]\d{5}(?![A-Za-z0-9_])(?!\.\d)")
# a number of six digits in a log is a code where it is said to be one; elsewhere it may be a process id or a size
_SAID = re.compile(r"(?:code\s*(?:is|[:=])|result\s*[:=]|ret(?:code)?\s*[:=]|errno?\s*[:=])\s*$", re.IGNORECASE)


@dataclass(frozen=True)
class _Catalogue:
    entries: Mapping[str, Explanation]
    parts: Mapping[str, str]
    kinds: Mapping[str, Explanation]
    families: tuple[tuple[re.Pattern[str], Explanation], ...]
    texts: tuple[tuple[re.Pattern[str], Explanation], ...]


def codes() -> tuple[str, ...]:
    """Every code that has an entry of its own, torch_npu's (each known part with each known kind) among them."""
    known = _shipped()
    composed = (f"ERR{part}{kind}" for part in known.parts for kind in known.kinds)
    return (*known.entries, *composed)


def explain(code: str) -> Explanation:
    """What a code means.

    Args:
        code: "507034", "EZ1001", "ERR00100"; case does not count.

    Raises:
        UsageError: it does not look like a code of Ascend, or nothing is known of it.

    Example:
        >>> explain("107001").means
        'there is no card of this number in this process'
    """
    wanted = code.strip().strip(":;,.").upper()
    known = _shipped()
    if wanted in known.entries:
        return known.entries[wanted]
    if _CODE.fullmatch(wanted):
        composed = _composed(wanted)
        if composed is not None:
            return composed
        for pattern, family in known.families:
            if pattern.fullmatch(wanted):
                return _with_code(family, wanted, of_its_own=False)
    raise UsageError(
        f"{code!r} is not a code of Ascend that is known here.",
        looked_at=f"the {len(codes())} codes in toprope/codes, and what their first letters and digits mean",
        do='give a code such as 507034, EZ1001 or ERR00100, or the whole message: toprope doctor "MESSAGE"',
    )


def in_text(text: str) -> tuple[Explanation, ...]:
    """What the codes and known messages in a text mean, in the order in which they stand there, each once.

    Numbers of six digits count where they are said to be a code, or have an entry.
    """
    known = _shipped()
    found: dict[str, tuple[int, Explanation]] = {}

    def add(place: int, what: Explanation) -> None:
        if what.code not in found or place < found[what.code][0]:
            found[what.code] = (place, what)

    for match in _LETTERS.finditer(text):
        if match[0][1].isdigit() and match[0] not in known.entries and text[match.end() : match.end() + 1] != ":":
            continue  # E and digits are common elsewhere: CANN puts a colon after its codes
        try:
            add(match.start(), explain(match[0]))
        except UsageError:
            pass  # looks like a code, and is none of Ascend's
    for match in _DIGITS.finditer(text):
        said = _SAID.search(text[max(0, match.start() - 24) : match.start()])
        if match[0] in known.entries or said is not None:
            try:
                add(match.start(), explain(match[0]))
            except UsageError:
                pass
    for pattern, what in known.texts:
        place = pattern.search(text)
        if place is not None:
            add(place.start(), what)
    return tuple(what for _, what in sorted(found.values(), key=lambda each: each[0]))


def _composed(code: str) -> Explanation | None:
    """A code of torch_npu: ERR, its part and its kind."""
    known = _shipped()
    part, kind = known.parts.get(code[3:5]), known.kinds.get(code[5:])
    if not code.startswith("ERR") or part is None or kind is None:
        return None
    return _with_code(kind, code, means=f"{part}: {kind.means}")


def _with_code(what: Explanation, code: str, *, means: str = "", of_its_own: bool = True) -> Explanation:
    return Explanation(code, what.name, means or what.means, what.causes, what.try_, what.sources, of_its_own)


@functools.cache
def _shipped() -> _Catalogue:
    return load(FOLDER)


def load(folder: Path) -> _Catalogue:
    """Read the files of a folder.

    Raises:
        ValueError: an entry lacks something, names an unknown source, or a code has two entries.
    """
    sources = {
        name: Source(name, str(table["url"]), str(table["what"]), str(table["read"]))
        for name, table in _read(folder / "sources.toml").items()
    }
    entries: dict[str, Explanation] = {}
    for file in ENTRIES:
        for each in _explanations(_read(folder / file)["code"], file, "code", sources):
            if each.code in entries:
                raise ValueError(f"{file}: {each.code} has two entries")
            entries[each.code] = each
    own = _read(folder / "torch_npu.toml")
    kinds = [{"sources": own["sources"], **kind} for kind in own["kind"]]
    families, texts = _read(folder / "families.toml")["family"], _read(folder / "texts.toml")["text"]
    return _Catalogue(
        entries,
        own["part"],
        {each.code: each for each in _explanations(kinds, "torch_npu.toml", "code", sources)},
        tuple(_patterns(families, "families.toml", "pattern", sources, re.NOFLAG)),
        tuple(_patterns(texts, "texts.toml", "name", sources, re.IGNORECASE | re.DOTALL)),
    )


def _patterns(
    tables: list[dict[str, Any]], file: str, key: str, sources: Mapping[str, Source], flags: re.RegexFlag
) -> Iterator[tuple[re.Pattern[str], Explanation]]:
    for table, what in zip(tables, _explanations(tables, file, key, sources), strict=True):
        yield re.compile(table["pattern"], flags), what


def _explanations(
    tables: list[dict[str, Any]], file: str, key: str, sources: Mapping[str, Source]
) -> Iterator[Explanation]:
    allowed = {key, "name", "pattern", "means", "causes", "try", "sources"}
    for table in tables:
        where = f"{file}, {table.get(key)}"
        if not {key, "means", "try", "sources"} <= set(table) <= allowed:
            raise ValueError(f"{where}: an entry has {', '.join(sorted(allowed))}, and no other key")
        ids = table["sources"]
        if not ids or any(each not in sources for each in ids):
            raise ValueError(f"{where}: every source is a table of sources.toml, and there is at least one")
        yield Explanation(
            table[key],
            "" if key == "name" else table.get("name", ""),
            table["means"],
            tuple(table.get("causes", ())),
            tuple(table["try"]),
            tuple(sources[each] for each in ids),
        )


def _read(path: Path) -> dict[str, Any]:
    import tomllib  # not needed by those who only import the room

    return tomllib.loads(path.read_text(encoding="utf-8"))

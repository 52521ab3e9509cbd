"""Catalogue of codes: read the TOML files, and find the explanation of a code.

Behind `toprope.codes.explain`; messages.py takes its patterns from here. Forms of codes are the vendor's. A new code or
message is an entry of a TOML file; a new file goes into `ENTRIES` or `TEXTS`, whose order decides between patterns that
both match a line. Tests: tests/base/test_codes.py.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toprope.codes.model import Explanation, Source
from toprope.codes.packages import Owner
from toprope.errors import UsageError

__all__ = ["Rule", "codes", "explain", "owners", "rules"]

FOLDER = Path(__file__).parent
ENTRIES = ("runtime.toml", "letters.toml")
TEXTS = (
    "texts.toml", "texts_run.toml", "cases.toml", "fallbacks.toml",
    "families_models.toml", "families_build.toml", "families.toml", "families_host.toml",
)  # fmt: skip
# what is before a message in a pattern of a family: the name of an exception, words that say that something failed
BEGIN = r"(?:Error: |error is |^\W*|(?:error|failed|failure|exception|错误|报错|失败|异常)\b[^\"']{0,160}?: )"

_CODE = re.compile(r"[1-9]\d{5}|E[0-9A-Z]\d{4}|ERR\d{5}")
_INNER = re.compile(r"0X0?(7[0-2][0-9A-F])([0-9A-F]{4})")


@dataclass(frozen=True, eq=False)
class Rule:
    """A message or a printed number that is found in lines.

    Attributes:
        hints: texts in small letters, one of which is in every line that can match.
        pattern: a match explains the line; of a number it has the group value (decimal) or hex.
        what: the explanation; of a number that has none of its own.
        values: explanations of the numbers; empty for a message.
        partners: if there are any, the message counts only in a log in which one of these codes is found too.
        alone: the message counts only in a log in which nothing else is found.
        family: the message counts only on a line in which nothing else is found.
    """

    hints: tuple[str, ...]
    pattern: re.Pattern[str]
    what: Explanation
    values: Mapping[int, Explanation]
    partners: tuple[str, ...] = ()
    alone: bool = False
    family: bool = False

    @property
    def general(self) -> bool:
        """True for a rule that explains a kind of line, and not one message."""
        return self.alone or self.family


@dataclass(frozen=True)
class _Catalogue:
    entries: Mapping[str, Explanation]
    parts: Mapping[str, str]
    kinds: Mapping[str, Explanation]
    families: tuple[tuple[re.Pattern[str], Explanation], ...]
    names: Mapping[str, str]
    inner: Mapping[str, Explanation]
    rules: tuple[Rule, ...]
    owners: tuple[Owner, ...]


def codes() -> tuple[str, ...]:
    """Every code that has an entry of its own, torch_npu's (each known part with each known kind) among them."""
    known = _shipped()
    composed = (f"ERR{part}{kind}" for part in known.parts for kind in known.kinds)
    return (*known.entries, *composed)


def rules() -> tuple[Rule, ...]:
    """The messages and printed numbers that are known."""
    return _shipped().rules


def owners() -> tuple[Owner, ...]:
    """The packages whose names are known."""
    return _shipped().owners


def explain(code: str) -> Explanation:
    """The meaning of a code.

    Args:
        code: "507034", "EZ1001", "ERR00100", "0x7020010"; case does not count.

    Raises:
        UsageError: it does not look like a code of Ascend, or nothing is known of it.

    Example:
        >>> explain("107001").means
        'there is no card of this number in this process'
    """
    wanted = code.strip().strip(":;,.").upper()
    known = _shipped()
    inner = _INNER.fullmatch(wanted)
    if inner is not None:
        wanted = f"0x{inner[1]}{inner[2]}".lower()
    for table in (known.entries, known.inner):
        if wanted in table:
            return table[wanted]
    if _CODE.fullmatch(wanted):
        composed = _composed(wanted)
        if composed is not None:
            return composed
        for pattern, family in known.families:
            if pattern.fullmatch(wanted):
                return replace(family, code=wanted, name=known.names.get(wanted, ""))
    raise UsageError(
        f"{code!r} is not a code of Ascend that is known here.",
        looked_at=f"the {len(codes())} codes in toprope/codes, and what their first letters and digits mean",
        do='give a code such as 507034, EZ1001 or ERR00100, or the whole message: toprope doctor "MESSAGE"',
    )


def _composed(code: str) -> Explanation | None:
    """A code of torch_npu: ERR, its part and its kind."""
    known = _shipped()
    part, kind = known.parts.get(code[3:5]), known.kinds.get(code[5:])
    if not code.startswith("ERR") or part is None or kind is None:
        return None
    return replace(kind, code=code, means=f"{part}: {kind.means}", order=2)


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
    general = _read(folder / "families.toml")
    families = general["family"]
    named = _read(folder / "runtime_names.toml")
    return _Catalogue(
        entries,
        own["part"],
        {each.code: each for each in _explanations(kinds, "torch_npu.toml", "code", sources)},
        tuple(
            (re.compile(table["pattern"]), replace(what, of_its_own=False, order=2, open=True))
            for table, what in zip(families, _explanations(families, "families.toml", "pattern", sources), strict=True)
        ),
        dict(each.split() for each in named["aclError"]["names"]),
        dict(_inner(named["inner"], entries, sources)),
        (
            *(
                _message(table, what, file)
                for file in TEXTS
                for texts in [_read(folder / file)["text"]]
                for table, what in zip(texts, _explanations(texts, file, "name", sources), strict=True)
            ),
            *_numbers(_read(folder / "numbers.toml")["enumeration"], sources),
        ),
        tuple(
            Owner(re.compile(table["names"]), table["advice"], table.get("python", False)) for table in general["owner"]
        ),
    )


def _inner(
    table: dict[str, Any], entries: Mapping[str, Explanation], sources: Mapping[str, Source]
) -> Iterator[tuple[str, Explanation]]:
    """Inner codes of the runtime: each with the causes of the code that the runtime returns for it."""
    for prefix, area in table["area"].items():
        for each in area["codes"]:
            digits, name, *returned = each.split()
            code = f"0x{prefix}{digits}"
            what = entries.get("".join(returned))
            means = f"inside the runtime, from {area['what']}" + (f" (it returns {returned[0]})" if returned else "")
            yield (
                code,
                Explanation(
                    code,
                    f"RT_ERROR_{name}",
                    means + (f": {what.means}" if what is not None else ""),
                    what.causes if what is not None else (),
                    ("look up the first code of the message", *(what.try_ if what is not None else ())),
                    tuple(sources[each] for each in table["sources"]),
                    of_its_own=False,
                    order=2,
                ),
            )


def _message(table: dict[str, Any], what: Explanation, file: str) -> Rule:
    pattern = re.compile(table["pattern"].replace("%begin%", BEGIN), re.IGNORECASE)
    alone, family = file == "fallbacks.toml", file.startswith("families")
    return Rule(tuple(table["hint"]), pattern, what, {}, tuple(table.get("with", ())), alone, family)


def _numbers(tables: list[dict[str, Any]], sources: Mapping[str, Source]) -> Iterator[Rule]:
    """Enumerations: a rule for each of their patterns."""
    for table in tables:
        name, order = table["name"], table.get("order", 2)
        common = {key: table[key] for key in ("means", "try", "sources")}
        default = next(_explanations([{"name": name, **common}], "numbers.toml", "name", sources))
        values = {
            int(number): replace(
                default, code=f"{name} {number}", name=constant, of_its_own=False, order=order, open=True
            )
            for number, constant in table.get("constants", {}).items()
        }
        for number, value in table["value"].items():
            constant = value.pop("constant")
            entry = {"code": f"{name} {number}", "order": order, **value}
            values[int(number)] = replace(next(_explanations([entry], "numbers.toml", "code", sources)), name=constant)
        for *hints, pattern in table["patterns"]:
            what = replace(default, of_its_own=False, order=order, open=True)
            yield Rule(tuple(hints), re.compile(pattern, re.IGNORECASE), what, values)


def _explanations(
    tables: list[dict[str, Any]], file: str, key: str, sources: Mapping[str, Source]
) -> Iterator[Explanation]:
    allowed = {key, "name", "pattern", "hint", "with", "means", "causes", "try", "order", "open", "sources"}
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
            order=table.get("order", 0),
            open=table.get("open", False),
        )


def _read(path: Path) -> dict[str, Any]:
    import tomllib  # not needed by those who import the package alone

    return tomllib.loads(path.read_text(encoding="utf-8"))

"""Catalogue of the chips: read and check the TOML files, and find a chip by the name a user writes.

Behind `toprope.chips.get` and `names`. A new field of the files is checked in `_value` and declared in model.py. Every
name that finds a chip today must find the same one tomorrow: programs and settings hold them. Nothing is imported that
a process with a card can do without. Tests: tests/base/test_chips.py.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from toprope.chips.model import FIGURES, Chip, Figure, Source, Value
from toprope.errors import ChipDataError, UnknownChipError

__all__ = ["Catalogue", "get", "load", "names"]

FOLDER = Path(__file__).parent
SOURCES = "sources.toml"


class Catalogue:
    """All described chips, in the order of their files.

    Raises:
        ChipDataError: two chips answer to one name.
    """

    def __init__(self, chips: Iterable[Chip]) -> None:
        self.chips = tuple(chips)
        self._by_key: dict[str, Chip] = {}
        for chip in self.chips:
            # soc_name too: what get_device_name() returned on a card must find its chip.
            for key in {_key(each) for each in (chip.name, *chip.aliases, chip.soc_name) if each}:
                other = self._by_key.setdefault(key, chip)
                if other is not chip:
                    raise ChipDataError(
                        f"the chips {other.name} and {chip.name} both answer to {key!r}.",
                        do="give each chip a name and aliases of its own (case, '-', '_' and 'Ascend' do not count)",
                    )

    def names(self) -> tuple[str, ...]:
        """The names of all chips, without their aliases."""
        return tuple(chip.name for chip in self.chips)

    def get(self, name: str) -> Chip:
        """The chip of that name or alias; case, spaces, "-", "_" and the prefix "Ascend" do not count.

        Raises:
            UnknownChipError: no chip answers to that name, or it is the name of a family.
        """
        key = _key(name)
        if key in self._by_key:
            return self._by_key[key]
        family = [chip.name for chip in self.chips if key and _key(chip.name).startswith(key)]
        known = ", ".join(_with_aliases(chip) for chip in self.chips)
        raise UnknownChipError(
            f"{name!r} is not one chip but a family." if len(family) > 1 else f"there is no chip {name!r}.",
            looked_at=f"the chips in toprope/chips: {known}",
            do=self._advice(name, key, family),
        )

    def _advice(self, name: str, key: str, family: list[str]) -> str:
        import difflib  # only a mistake needs it

        alone, _, count = name.lower().rpartition("x")
        if count.isdecimal() and _key(alone) in self._by_key:
            chip = self._by_key[_key(alone)].name
            return f"name the chip alone, {chip}, and the number of cards as the count: --count {count}"
        close = difflib.get_close_matches(key, self._by_key, n=3, cutoff=0.6)
        meant = family or list(dict.fromkeys(self._by_key[each].name for each in close))
        if not meant:
            return "use one of these names; toprope explain chips says how another is added"
        return f"write {' or '.join(meant)}" if family else f"did you mean {' or '.join(meant)}?"


def get(name: str) -> Chip:
    """The chip that a user calls `name`: "910B3", "ascend910b3", "910C".

    Raises:
        UnknownChipError: no chip answers to that name, or it is the name of a family.

    Example:
        >>> chip = get("ascend910b3")
        >>> chip.name, chip.cube_cores, chip.vector_cores
        ('910B3', 20, 40)
        >>> chip.figure("cube_cores").value
        20
    """
    return _shipped().get(name)


def names() -> tuple[str, ...]:
    """The names of all described chips."""
    return _shipped().names()


@functools.cache
def _shipped() -> Catalogue:
    return load(FOLDER)


def load(folder: Path) -> Catalogue:
    """Read sources.toml and the families next to it.

    Raises:
        ChipDataError: a file is not TOML, or a figure has no source, no value of its kind, or an unknown name.
    """
    sources = _sources(_read(folder / SOURCES))
    chips: list[Chip] = []
    for path in sorted(folder.glob("*.toml")):
        if path.name != SOURCES:
            chips += _family(path.name, _read(path), sources)
    return Catalogue(chips)


def _with_aliases(chip: Chip) -> str:
    """The name, with those aliases that are not just a part of it: "910_9391 (910C)"."""
    aliases = [alias for alias in chip.aliases if alias not in chip.name]
    return f"{chip.name} ({', '.join(aliases)})" if aliases else chip.name


def _key(name: str) -> str:
    """A name without case, spaces, "-", "_" and the prefix "Ascend"."""
    key = "".join(letter for letter in name.casefold() if letter not in " -_\t\r\n")
    return key.removeprefix("ascend")


def _read(path: Path) -> dict[str, Any]:
    import tomllib  # not needed by those who import the package alone

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ChipDataError(f"{path.name} cannot be read: {error}", looked_at=str(path)) from error


def _wrong(where: str, what: str) -> ChipDataError:
    return ChipDataError(f"{where}: {what}.", do="toprope explain chips says how a chip is described")


def _sources(tables: Mapping[str, Any]) -> dict[str, Source]:
    found = {}
    for name, table in tables.items():
        where = f"{SOURCES}, {name}"
        if not isinstance(table, dict) or set(table) != {"url", "what", "read"}:
            raise _wrong(where, "a source is a table of url, what and read")
        source = Source(name, str(table["url"]), str(table["what"]), str(table["read"]))
        if not source.url.startswith("https://") or not source.what or not hasattr(table["read"], "isoformat"):
            raise _wrong(where, "a source has an https address, says what it is, and has the date it was read")
        found[name] = source
    return found


def _family(file: str, table: Mapping[str, Any], sources: Mapping[str, Source]) -> list[Chip]:
    common, entries = table.get("common", {}), table.get("chip", [])
    tables = isinstance(common, dict) and isinstance(entries, list) and all(isinstance(each, dict) for each in entries)
    if not tables or not isinstance(table.get("family"), str) or set(table) - {"family", "common", "chip"}:
        raise _wrong(file, "a family has a name (family), may have common figures (common), and has chips (chip)")
    chips = []
    for entry in entries:
        name, aliases = entry.get("name"), entry.get("aliases", [])
        if not isinstance(aliases, list) or not all(isinstance(each, str) and _key(each) for each in (name, *aliases)):
            raise _wrong(file, "a chip has a name and may have a list of aliases")
        raw = {**common, **{key: entry[key] for key in entry if key not in ("name", "aliases")}}
        figures = {key: _figure(f"{file}, {name}, {key}", key, raw[key], sources) for key in raw}
        values: dict[str, Any] = {key: figure.value for key, figure in figures.items()}
        ordered = {key: figures[key] for key in FIGURES if key in figures}
        chips.append(Chip(name=name, family=table["family"], aliases=tuple(aliases), figures=ordered, **values))
    return chips


def _figure(where: str, name: str, raw: Any, sources: Mapping[str, Source]) -> Figure:
    if name not in FIGURES:
        raise _wrong(where, f"there is no such figure; there are {', '.join(FIGURES)}")
    if not isinstance(raw, dict) or not {"value", "source"} <= set(raw) <= {"value", "source", "note"}:
        raise _wrong(where, "a figure is a table of value and source, and may have a note")
    ids = [raw["source"]] if isinstance(raw["source"], str) else raw["source"]
    if not isinstance(ids, list) or not ids or not all(isinstance(each, str) and each in sources for each in ids):
        raise _wrong(where, f"source {raw['source']!r} is not in {SOURCES}")
    return Figure(_value(where, name, raw["value"]), tuple(sources[each] for each in ids), str(raw.get("note", "")))


def _value(where: str, name: str, value: Any) -> Value:
    """Check a value by the kind of its figure, and make lists immutable."""
    if name in ("soc_name", "npu_smi_name", "host_link", "core_structure"):
        good = isinstance(value, str) and value != "" and (name != "core_structure" or value in ("split", "unified"))
    elif name == "dtypes":
        good = isinstance(value, list) and value != [] and all(isinstance(each, str) and each for each in value)
        value = tuple(value) if good else value
    elif name == "cube_macs_per_cycle":
        good = isinstance(value, dict) and value != {} and all(_positive(each) for each in value.values())
    elif name == "memory_gb_per_s":
        good = _positive(value) or (isinstance(value, float) and value > 0)
    else:
        good = _positive(value) or (name == "vector_cores" and value == 0 and not isinstance(value, bool))
    if not good:
        raise _wrong(where, f"{value!r} is no value of this figure")
    checked: Value = value
    return checked


def _positive(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0

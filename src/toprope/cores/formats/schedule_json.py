"""Schedules as JSON: read with an error that names the place, written back without loss; pure.

A part of `cores.record`. The format is toprope's own and public: docs/cores.md describes it, examples/cores has
files, and a key that is added must be both read and written; existing keys stay. Tests:
tests/cores/test_cores_record.py, tests/cores/test_cores_examples.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from toprope import chips
from toprope.cores.model import Card, Collective, Communicator, Cores, Op, Program, Stream
from toprope.errors import ScheduleError, UnknownChipError
from toprope.support.all_blocks import needs_all_blocks

__all__ = ["ENGINES", "TIMINGS", "card_of_chip", "from_data", "from_json", "parse", "to_data", "to_json"]

ENGINES = ("aiv", "aicpu", "host", "ccu")
"""The engines that can run the collectives of a communicator."""

TIMINGS = ("measured", "profile", "estimate")
"""The sources that the time of an operator can have."""

_KINDS = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a table",
}
_IGNORED = "note"


def from_json(text: str, source: str = "schedule") -> Program:
    """The program that a JSON schedule describes; docs/cores.md describes the format.

    Args:
        text: the JSON text.
        source: how errors and `Op.source` call it, such as the file's name.

    Raises:
        ScheduleError: it is no JSON, is cut short, has a wrong type or an unknown key, names a chip, card or
            communicator that is not there, or asks for too few or too many cores.
    """
    return from_data(parse(text, source), source)


def from_data(data: object, source: str = "schedule") -> Program:
    """The program that a schedule describes which `json` has already read.

    Raises:
        ScheduleError: as `from_json`.
    """
    top = _Table(data, source, "")
    top.only("cards", "communicators", "streams", "expect")
    cards = tuple(_card(each) for each in top.tables("cards"))
    groups = tuple(_communicator(each) for each in top.tables("communicators", ()))
    known = {card.name: card for card in cards}
    streams = _streams(top.tables("streams"), known)
    try:
        program = Program(cards, streams, groups)
    except ScheduleError as error:
        if source in error.looked_at:
            raise
        raise ScheduleError(error.what, f"{source}: {error.looked_at}", error.do) from None
    return program


def to_data(program: Program) -> dict[str, Any]:
    """The schedule of a program, as `json` writes it. What is not known is left out."""
    return {
        "cards": [_without({"name": each.name, "chip": each.chip}) | _cores(each.cores) for each in program.cards],
        "communicators": [
            {"name": each.name, "cards": list(each.cards)} | _without({"engine": each.engine})
            for each in program.communicators
        ],
        "streams": [
            {"name": each.name, "card": each.card, "ops": [_op_data(op) for op in each.ops]} for each in program.streams
        ],
    }


def to_json(program: Program) -> str:
    """The schedule of a program as text, an operator a line; `from_json` gives the same program back."""
    data = to_data(program)
    streams = (
        f'{{{_pairs(name=each["name"], card=each["card"])}, "ops": {_lines(map(json.dumps, each["ops"]), 2)}}}'
        for each in data["streams"]
    )
    parts = {
        "cards": _lines(map(json.dumps, data["cards"]), 1),
        "communicators": _lines(map(json.dumps, data["communicators"]), 1),
        "streams": _lines(streams, 1),
    }
    return "{\n" + ",\n".join(f'  "{name}": {text}' for name, text in parts.items()) + "\n}\n"


def parse(text: str, source: str) -> Any:
    """The value of a JSON text.

    Raises:
        ScheduleError: it is no JSON, or is cut short.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        short = not text[error.pos :].strip() or error.msg.startswith("Unterminated string")
        raise ScheduleError(
            f"{source} is cut short." if short else f"{source} is not JSON: {error.msg}.",
            looked_at=f"{source}: line {error.lineno}, column {error.colno}",
            do="write the file again, and wait until it is whole" if short else "correct the text at that place",
        ) from None
    except RecursionError:
        raise ScheduleError(f"{source} is nested too deep for a schedule.", looked_at=source) from None


def card_of_chip(name: str, chip: str, where: str) -> Card:
    """A card of this chip with all of its cores.

    Args:
        name: how the program calls the card.
        chip: "910B1" or another name that `toprope.chips` knows.
        where: the record that says so, for the error.

    Raises:
        ScheduleError: there is no such chip, or nobody knows its cores.
    """
    try:
        found = chips.get(chip)
    except UnknownChipError as error:
        raise ScheduleError(
            f"card {name}: {error.what}", looked_at=f"{where}; {error.looked_at}", do=error.do
        ) from None
    if found.cube_cores is None or found.vector_cores is None:
        raise ScheduleError(
            f"card {name}: how many cores a {found.name} has is not known.",
            looked_at=where,
            do="give the card its cube and vector cores",
        )
    return Card(name, found.cube_cores, found.vector_cores, found.name)


class _Table:
    """A JSON object with its place in the file, for errors."""

    def __init__(self, data: object, source: str, place: str) -> None:
        if not isinstance(data, dict):
            raise _wrong_type(f"{source}: {place}" if place else source, dict, data)
        self._data: Mapping[str, Any] = data
        self._source = source
        self._place = place
        self.where = f"{source}: {place}" if place else source

    def only(self, *names: str) -> None:
        """Refuses keys that a schedule does not have there."""
        for key in self._data:
            if key not in names and key != _IGNORED:
                raise ScheduleError(
                    f"a schedule has no {key!r} there.", looked_at=f"{self.where}: {key}", do=_advice(key, names)
                )

    def has(self, name: str) -> bool:
        """True if it has this key."""
        return name in self._data

    def get(self, name: str, kind: type, default: Any = None) -> Any:
        """The value of a key, checked to be of this type; without a default the key must be there."""
        if name not in self._data:
            if default is None:
                raise ScheduleError(f"{name!r} is missing.", looked_at=self.where, do=f"add {name!r}: {_KINDS[kind]}")
            return default
        value = self._data[name]
        wanted = (int, float) if kind is float else kind
        if not isinstance(value, wanted) or (isinstance(value, bool) and kind is not bool):
            raise _wrong_type(f"{self.where}: {name}", kind, value)
        return value

    def tables(self, name: str, default: Any = None) -> list[_Table]:
        """The objects in a list."""
        place = f"{self._place}.{name}" if self._place else name
        found = self.get(name, list, default)
        return [_Table(each, self._source, f"{place}[{number}]") for number, each in enumerate(found)]

    def texts(self, name: str, default: Any = None) -> tuple[str, ...]:
        """The texts in a list."""
        found = self.get(name, list, default)
        for number, each in enumerate(found):
            if not isinstance(each, str):
                raise _wrong_type(f"{self.where}: {name}[{number}]", str, each)
        return tuple(found)

    def one_of(self, name: str, allowed: tuple[str, ...]) -> str:
        """One of these words; empty without the key."""
        value: str = self.get(name, str, "")
        if self.has(name) and value not in allowed:
            raise ScheduleError(
                f"{name} {value!r} is not known.",
                looked_at=f"{self.where}: {name}",
                do=f"write {', '.join(allowed[:-1])} or {allowed[-1]}, or leave it out where it is not known",
            )
        return value


def _card(table: _Table) -> Card:
    table.only("name", "chip", "cube", "vector")
    name = table.get("name", str)
    for kind in ("cube", "vector"):
        if table.get(kind, int, 0) < 0:
            raise ScheduleError(f"card {name} has fewer than 0 cores.", looked_at=f"{table.where}: {kind}")
    if not table.has("chip"):
        return Card(name, table.get("cube", int), table.get("vector", int))
    card = card_of_chip(name, table.get("chip", str), table.where)
    return replace(card, cube=table.get("cube", int, card.cube), vector=table.get("vector", int, card.vector))


def _communicator(table: _Table) -> Communicator:
    table.only("name", "cards", "engine")
    return Communicator(table.get("name", str), table.texts("cards"), table.one_of("engine", ENGINES))


def _streams(tables: list[_Table], cards: Mapping[str, Card]) -> tuple[Stream, ...]:
    counts: dict[tuple[str, str], int] = {}
    owners: dict[tuple[str, str], str] = {}
    streams = []
    for table in tables:
        table.only("name", "card", "ops")
        card = table.get("card", str)
        if card not in cards:
            raise ScheduleError(
                f"stream {table.get('name', str)} is on card {card!r}, which is not there.",
                looked_at=f"{table.where}; cards {', '.join(cards) or 'none'}",
                do="list the card under cards, or correct its name",
            )
        ops = []
        for place in table.tables("ops"):
            op = _op(place, cards[card])
            if op.collective is not None:
                key = card, op.collective.communicator
                owner = owners.setdefault(key, table.where)
                if not place.has("sequence"):
                    if owner != table.where:
                        raise ScheduleError(
                            f"which collective of {key[1]} {op.name} is cannot be counted.",
                            looked_at=f"{op.source}; another stream of card {card} has some too: {owner}",
                            do="give each of them its sequence",
                        )
                    op = replace(op, collective=replace(op.collective, sequence=counts.get(key, 0)))
                counts[key] = counts.get(key, 0) + 1
            ops.append(op)
        streams.append(Stream(table.get("name", str), card, tuple(ops)))
    return tuple(streams)


def _op(table: _Table, card: Card) -> Op:
    table.only(
        "name", "cube", "vector", "sync_all", "collective", "sequence", "waits", "records", "microseconds", "timing",
        "kind", "limit", "ignores_limit", "assumed",
    )  # fmt: skip
    collective = None
    if table.has("collective"):
        collective = Collective(table.get("collective", str), table.get("sequence", int, 0))
    elif table.has("sequence"):
        raise ScheduleError("a sequence without a collective.", looked_at=table.where, do="name the communicator")
    if collective is not None and collective.sequence < 0:
        raise ScheduleError("a sequence is below 0.", looked_at=f"{table.where}: sequence", do="count from 0")
    if table.has("timing") and not table.has("microseconds"):
        raise ScheduleError("timing without a time.", looked_at=table.where, do="add microseconds, or leave out timing")
    cube, vector = table.get("cube", int, 0), table.get("vector", int, 0)
    if min(cube, vector) > 0 and max(cube, vector) % min(cube, vector):
        raise ScheduleError(
            f"{cube} cube and {vector} vector cores are no whole number of blocks.",
            looked_at=table.where,
            do="give a kernel of both kinds the cores of its blocks, such as 1 cube and 2 vector cores each",
        )
    kind = table.get("kind", str, "HOST" if not (cube or vector) and table.has("cube") and table.has("vector") else "")
    known: bool | None = table.get("sync_all", bool, False) if table.has("sync_all") else None
    if known is None and (collective is not None or not (cube or vector)):
        known = False
    if known is None:
        known = needs_all_blocks(table.get("name", str), core=kind)
    return Op(
        name=table.get("name", str),
        cube=cube,
        vector=vector,
        sync_all=known is not False,
        collective=collective,
        waits=table.texts("waits", ()),
        records=table.texts("records", ()),
        microseconds=float(table.get("microseconds", float)) if table.has("microseconds") else None,
        timing=table.one_of("timing", TIMINGS),
        kind=kind,
        limit=_limit(table, card),
        ignores_limit=table.get("ignores_limit", str, ""),
        assumed=table.get("assumed", bool, known is None),
        source=table.where,
    )


def _limit(table: _Table, card: Card) -> Cores | None:
    if not table.has("limit"):
        return None
    inner = _Table(table.get("limit", dict), table.where, "limit")
    inner.only("cube", "vector")
    limit = inner.get("cube", int, card.cube), inner.get("vector", int, card.vector)
    if min(limit) < 0 or limit[0] > card.cube or limit[1] > card.vector:
        raise ScheduleError(
            f"the limit {limit[0]} cube, {limit[1]} vector is not one of card {card.name}.",
            looked_at=f"{inner.where}: the card has {card.cube} cube, {card.vector} vector",
            do="give a limit from 0 to what the card has; a card refuses others (EE1003)",
        )
    return limit


def _op_data(op: Op) -> dict[str, Any]:
    collective = op.collective
    return (
        {"name": op.name}
        | _without({"cube": op.cube, "vector": op.vector})
        | ({"sync_all": op.sync_all} if op.sync_all or (any(op.cores) and collective is None) else {})
        | _without({"assumed": op.assumed})
        | ({} if collective is None else {"collective": collective.communicator, "sequence": collective.sequence})
        | _without({"waits": list(op.waits), "records": list(op.records)})
        | ({} if op.microseconds is None else {"microseconds": op.microseconds})
        | _without({"timing": op.timing, "kind": op.kind, "ignores_limit": op.ignores_limit})
        | ({} if op.limit is None else {"limit": _cores(op.limit)})
    )


def _wrong_type(where: str, kind: type, value: object) -> ScheduleError:
    is_ = "nothing (null)" if value is None else _KINDS.get(type(value), type(value).__name__)
    return ScheduleError(f"{_KINDS[kind]} belongs there, not {is_}.", looked_at=where, do=f"write {_KINDS[kind]}")


def _advice(key: str, names: Iterable[str]) -> str:
    import difflib  # only a mistake needs it

    close = difflib.get_close_matches(key, names, n=1)
    known = ", ".join(names)
    return f"did you mean {close[0]!r}?" if close else f"there can be {known}, and a note in any table"


def _cores(cores: Cores) -> dict[str, int]:
    return {"cube": cores[0], "vector": cores[1]}


def _without(data: Mapping[str, Any]) -> dict[str, Any]:
    """Only the entries of an object that have a value; 0, None and what is empty are left out."""
    return {name: value for name, value in data.items() if value}


def _pairs(**values: str) -> str:
    return json.dumps(values)[1:-1]


def _lines(items: Iterable[str], depth: int) -> str:
    inner = [f"{'  ' * (depth + 1)}{each}" for each in items]
    return "[\n" + ",\n".join(inner) + f"\n{'  ' * depth}]" if inner else "[]"

"""The table of operators by release, against warnings that real cards gave, as public threads show them.

Holds src/toprope/support/operators_on_card.py; the threads are in tests/data/fallback_warnings.toml.
"""

import tomllib
from collections import Counter
from pathlib import Path

import pytest

from toprope.support.operators_on_card import Kind, find_release, releases, status

ROOT = Path(__file__).resolve().parents[2]
DATA = tomllib.loads((ROOT / "tests" / "data" / "fallback_warnings.toml").read_text(encoding="utf-8"))
PAGE = ROOT / "docs" / "operators_by_release.md"
ON_CARD = (Kind.ON_CARD, Kind.OLD_ROAD, Kind.PARTLY_HOST)


def told(row: dict[str, str]) -> str:
    """What the table says: "host", "card", or what kinds it has where it is neither in all releases."""
    chosen = releases() if row["version"] == "*" else [find_release(row["version"])]
    kinds = {status(row["operator"], release=one).kind for one in chosen}
    if kinds == {Kind.HOST}:
        return "host"
    return "card" if kinds <= {*ON_CARD} else ", ".join(sorted(kinds))


def counts(table: str) -> tuple[int, int, int, int]:
    """Rows, agreements, rows wrongly said to be on the card, and wrongly on the host."""
    pairs = [(row["where"], told(row)) for row in DATA[table]]
    agree = sum(real == said for real, said in pairs)
    false_card = sum(real == "host" != said for real, said in pairs)
    false_host = sum(real == "card" != said for real, said in pairs)
    return len(pairs), agree, false_card, false_host


@pytest.mark.parametrize("table", ["warning", "file"])
def test_the_table_agrees_with_real_cards(table: str) -> None:
    rows, agree, _, _ = counts(table)
    assert agree / rows >= 0.9, [(row["operator"], row["version"], told(row)) for row in DATA[table]]


def test_no_operator_has_more_than_three_threads() -> None:
    assert max(Counter(row["operator"] for row in DATA["warning"]).values()) <= 3


def test_twenty_operators_or_more_are_held_against_the_table() -> None:
    assert len({row["operator"] for rows in DATA.values() for row in rows}) >= 20


def test_the_page_states_the_agreement() -> None:
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    for table, name in (("warning", "threads"), ("file", "files")):
        rows, agree, false_card, false_host = counts(table)
        assert (
            f"{name}: {agree} of {rows} agree, {false_card} wrongly on the card, {false_host} wrongly on the host"
            in text
        )

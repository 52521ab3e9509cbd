"""Cards that ASCEND_RT_VISIBLE_DEVICES shows, by the vendor's rules, and that the simulated card agrees.

Holds `toprope.visible_devices`. The rules are torch_npu's, read from its source and from CANN's documentation.
"""

import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import forkserver
from toprope.visible_devices import explain, visible_cards

pytestmark = [pytest.mark.native, pytest.mark.process]


def test_the_deprecated_module_has_the_same_names_with_a_warning():
    from toprope import visible

    with pytest.warns(DeprecationWarning, match="toprope.visible is toprope.visible_devices now"):
        assert visible.visible_cards is visible_cards
    with pytest.raises(AttributeError, match="npu_cards"):
        visible.npu_cards  # noqa: B018


MASKS = [
    ("1,3", (1, 3), ""),
    ("0", (0,), ""),
    ("0,1,2,3", (0, 1, 2, 3), ""),
    ("00,01", (0, 1), ""),
    ("0,1,", (0, 1), ""),
    ("3,1", (), "numbers must rise, and 1 follows 3"),
    ("1,1", (), "numbers must rise, and 1 follows 1"),
    ("0,99", (0,), "there is no card 99"),
    ("4", (), "there is no card 4"),
    ("0,5,3", (0,), "there is no card 5"),
    ("", (), "it is empty"),
    ("0,1x,2", (0, 1), "reading stops at 'x', character 4"),
    ("x", (), "reading stops at 'x', character 1"),
    (" 0", (), "reading stops at ' ', character 1"),
    ("0 ,1", (0,), "reading stops at ' ', character 2"),
    ("-1", (), "reading stops at '-', character 1"),
    ("0,,1", (0,), "reading stops at ',', character 3"),
    ("1-3", (1,), "reading stops at '-', character 2"),
    ("99999999999999999999999", (), "there is no card 99999999999999999999999"),
]


@pytest.mark.parametrize(("mask", "cards", "problem"), MASKS)
def test_what_a_mask_shows(mask: str, cards: tuple[int, ...], problem: str) -> None:
    seen = visible_cards(mask, 4)
    assert (seen.cards, seen.problem) == (cards, problem)


def test_without_a_mask_all_cards_are_seen() -> None:
    assert visible_cards(None, 3).cards == (0, 1, 2)
    assert visible_cards(None, 3).problem == ""


def test_the_explanation_is_a_sentence() -> None:
    assert explain("3,1", 4) == "ASCEND_RT_VISIBLE_DEVICES=3,1 shows no card: numbers must rise, and 1 follows 3"
    assert explain("0,99", 4) == "ASCEND_RT_VISIBLE_DEVICES=0,99 shows 1 of 4 cards: there is no card 99"
    assert explain("1,3", 4) == "ASCEND_RT_VISIBLE_DEVICES=1,3 shows 2 of 4 cards"
    assert explain("", 4) == "ASCEND_RT_VISIBLE_DEVICES= shows no card: it is empty"


@given(st.sets(st.integers(0, 15), min_size=1).map(sorted), st.integers(1, 16))
def test_a_rising_list_shows_those_that_are_there(cards: list[int], count: int) -> None:
    seen = visible_cards(",".join(map(str, cards)), count)
    assert list(seen.cards) == [card for card in cards if card < count]
    assert bool(seen.problem) == (cards[-1] >= count)


@given(st.one_of(st.text(), st.text("0123456789,x ")), st.integers(1, 16))
def test_every_text_has_an_answer(mask: str, count: int) -> None:
    seen = visible_cards(mask, count)
    assert list(seen.cards) == sorted(set(seen.cards))
    assert all(0 <= card < count for card in seen.cards)
    assert seen.cards or seen.problem
    assert mask in explain(mask, count)


@given(st.lists(st.integers(0, 20), min_size=1), st.integers(1, 16))
def test_less_than_what_is_listed_always_has_a_reason(cards: list[int], count: int) -> None:
    seen = visible_cards(",".join(map(str, cards)), count)
    assert bool(seen.problem) == (len(seen.cards) < len(cards))


@given(st.lists(st.integers(0, 15), min_size=2, max_size=16), st.text("0123456789,", max_size=4))
def test_what_follows_a_foreign_character_changes_nothing(cards: list[int], rest: str) -> None:
    mask = ",".join(map(str, cards))
    assert visible_cards(f"{mask};{rest}", 16).cards == visible_cards(mask, 16).cards


CORE = """
import ctypes, json, os, sys
mask, path = sys.argv[1:]
os.environ["ASCEND_RT_VISIBLE_DEVICES"] = mask
core = ctypes.CDLL(path)
assert core.ts_configure(4, ctypes.c_uint64(2**20), ctypes.c_uint64(32), 60) == 0
print(json.dumps([core.ts_physical_id(index) for index in range(core.ts_device_count())]))
"""


@pytest.fixture(scope="module")
def core() -> str:
    """The simulator's shared object without torch, built as for an installation."""
    find = "from toprope.sim import build; print(build.ensure().core)"
    done = forkserver.run([sys.executable, "-c", find], timeout=280)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
@pytest.mark.parametrize("mask", [mask for mask, _, _ in MASKS])
def test_the_simulated_card_agrees(core: str, mask: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CORE, mask, core], capture_output=True, text=True, timeout=60, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stderr
    assert tuple(json.loads(done.stdout)) == visible_cards(mask, 4).cards

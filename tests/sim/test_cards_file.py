"""The file in which the processes of a run share their cards, from bytes made by hand.

Holds src/toprope/sim/metrics/cards.py.
"""

import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toprope.sim.metrics import cards
from toprope.sim.metrics.cards import ProcessState

pytestmark = pytest.mark.process

SLOT = "<QQ32s16Q"
BYTES = st.integers(0, 2**40)
NAME = st.text(st.characters(min_codepoint=32, max_codepoint=0x24F), max_size=15)
PROCESS = st.builds(
    ProcessState, st.integers(1, 2**22), NAME, BYTES, st.lists(BYTES, min_size=16, max_size=16).map(tuple)
)


def packed(processes: list[ProcessState], unhealthy: dict[int, int] | None = None) -> bytes:
    """The bytes of a cards file with these processes."""
    head = b"".join(struct.pack("<8Q", 0, (unhealthy or {}).get(card, 0), *[0] * 6) for card in range(16))
    slots = [struct.pack(SLOT, each.pid, each.started, each.name.encode(), *each.reserved) for each in processes]
    return (head + b"".join(slots)).ljust(cards.SIZE, b"\0")


@pytest.mark.slow
@given(st.lists(PROCESS, max_size=5), st.integers(1, 16), st.dictionaries(st.integers(0, 15), st.integers(1, 600000)))
def test_every_card_has_its_processes_and_their_sum(
    processes: list[ProcessState], count: int, unhealthy: dict[int, int]
) -> None:
    seen = cards.parse(packed(processes, unhealthy), count)
    assert [card.physical for card in seen] == list(range(count))
    for card in seen:
        held = [each.reserved[card.physical] for each in processes]
        assert card.reserved == sum(held)
        assert [each.reserved[card.physical] for each in card.processes] == [number for number in held if number]
        assert card.unhealthy == unhealthy.get(card.physical, 0)
    assert {each.name for card in seen for each in card.processes} <= {each.name for each in processes}


@given(st.binary(max_size=2000))
def test_any_bytes_are_read(data: bytes) -> None:
    seen = cards.parse(data)
    assert len(seen) == 16
    assert all(card.reserved == sum(each.reserved[card.physical] for each in card.processes) for card in seen)


def test_slots_that_are_being_filled_or_dropped_hold_nobody() -> None:
    held = (5, *[0] * 15)
    slots = b"".join(struct.pack(SLOT, 2**64 - place, 1, b"x", *held) for place in (1, 2))
    assert all(not card.processes for card in cards.parse(bytes(16 * 64) + slots))


def test_a_run_that_used_no_card_has_none_in_use(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "gone"):
        assert [card.reserved for card in cards.read(folder, 2)] == [0, 0]
    (tmp_path / cards.FILE).touch()
    assert [card.processes for card in cards.read(tmp_path, 2)] == [(), ()]


def test_only_the_living_count(tmp_path: Path) -> None:
    started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    held = (7, *[0] * 15)
    me = ProcessState(os.getpid(), "me", started, held)
    earlier = ProcessState(os.getpid(), "with my number", started - 1, held)
    gone = ProcessState(2**22 + 1, "gone", started, held)
    (tmp_path / cards.FILE).write_bytes(packed([earlier, me, gone]))
    (card,) = cards.read(tmp_path, 1)
    assert (card.reserved, card.processes) == (7, (me,))


def test_a_process_that_has_ended_and_not_been_waited_for_is_dead(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    started = int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[19])
    (tmp_path / cards.FILE).write_bytes(packed([ProcessState(child, "zombie", started, (7, *[0] * 15))]))
    assert cards.read(tmp_path, 1)[0].reserved == 0
    os.waitpid(child, 0)

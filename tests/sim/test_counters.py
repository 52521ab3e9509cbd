"""Reading of a counters file: values that the core writes, and files that are refused.

Holds src/toprope/sim/metrics/counters.py, from bytes made by hand.
"""

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toprope.sim.layouts import MAX_CARDS, MAX_KINDS
from toprope.sim.metrics import counters
from toprope.sim.metrics.counters import (
    SIZE,
    Assumed,
    HostSite,
    Lack,
    LackRecord,
    Site,
    parse,
    read,
    read_run,
)

ANY = st.integers(0, 2**64 - 1)
NAMES = st.text(st.characters(codec="ascii", min_codepoint=33), min_size=1, max_size=47)
TEXTS = st.text(st.characters(codec="ascii", min_codepoint=32), max_size=31)


def packed(
    *, magic=b"TOPROPE\x01", pid=1, chip="910B3", torch="2.13.0", flags=0, mask="", totals=(0,) * 8, cards=(), kinds=(),
    events=0, sites=(), assumed=(), lacks=(), torch_npu="", host_sites=(),
) -> bytes:  # fmt: skip
    """A counters file as toprope/sim/csrc/core/counters.h lays it out, written down once more."""
    out = struct.pack("<8sQ32s32sQ64sQ", magic, pid, chip.encode(), torch.encode(), flags, mask.encode(), len(cards))
    out += struct.pack("<8Q", *totals)
    out += b"".join(struct.pack("<10Q", *card) for card in cards) + bytes(80 * (MAX_CARDS - len(cards)))
    out += struct.pack("<Q", len(kinds))
    out += b"".join(struct.pack("<48sQQ", name.encode(), dtypes, calls) for name, dtypes, calls in kinds)
    out += bytes(64 * (MAX_KINDS - len(kinds)))
    out += struct.pack("<4Q", events, len(sites), len(assumed), len(lacks))
    out += b"".join(struct.pack("<48s144s3Q", site[0].encode(), site[1].encode(), *site[2:]) for site in sites)
    out += bytes(216 * (256 - len(sites)))
    out += b"".join(struct.pack("<Ihh", *one) for one in assumed) + bytes(8 * (512 - len(assumed)))
    out += b"".join(struct.pack("<64sIiQQ424s", lack[0].encode(), *lack[1:-1], lack[-1].encode()) for lack in lacks)
    out += bytes(512 * (32 - len(lacks))) + struct.pack("<64sQ", torch_npu.encode(), len(host_sites))
    out += b"".join(struct.pack("<80s144s4Q", one[0].encode(), one[1].encode(), *one[2:]) for one in host_sites)
    return out + bytes(256 * (128 - len(host_sites)))


def test_the_size_of_a_file_is_that_of_the_struct_in_c():
    # char[8], u64, char[32], char[32], u64, char[64], u64; 8 totals; 16 cards of 10; a count; 2048 kinds of char[48], 2
    # then 4 counts, 256 sites, 512 assumed dtypes, 32 lacks
    kinds_end = 160 + 64 + 16 * 80 + 8 + 2048 * 64
    # and the release with a count, and 128 places of operators on the host
    assert SIZE == kinds_end + 32 + 256 * 216 + 512 * 8 + 32 * 512 + 72 + 128 * 256 == len(packed())


def test_places_of_operators_on_the_host_are_read_with_the_release():
    found = parse(
        packed(
            torch_npu="v2.9.0-7.3.0", host_sites=[("aten::hypot.out", "/a/b.py", 7, 3, 24, 12), ("x", "", 0, 0, 0, 0)]
        )
    )
    assert found is not None
    assert found.torch_npu == "v2.9.0-7.3.0"
    assert found.host_sites == (HostSite("aten::hypot.out", "/a/b.py", 7, 3, 24, 12),)


def test_places_assumed_dtypes_and_lacks_are_read():
    found = parse(
        packed(
            kinds=[("aten::add", 0, 3), ("aten::mm", 1, 2)],
            events=256,
            sites=[("aten::copy_", "/a/b.py", 7, 2, 3), ("never", "/a/b.py", 8, 0, 0)],
            assumed=[(1, 0, 4), (0, -1, 15), (1, 0, 4)],
            lacks=[
                ("aten::histc", Lack.DTYPE.value, 3, 5, 99, "aten::histc has no kernel"),
                ("torch_npu.x", Lack.NAME.value, -1, 1, 3, "text"),
            ],
        )
    )
    assert found is not None
    assert found.sites == (Site("aten::copy_", "/a/b.py", 7, 2, 3, 0),)
    assert not found.sampled
    assert parse(packed(events=257)).sampled
    assert found.assumed == (Assumed("aten::mm", 0, "int64"), Assumed("aten::add", None, "bfloat16"))
    assert found.lacks == (
        LackRecord("aten::histc", Lack.DTYPE, "int32", 5, 99, "aten::histc has no kernel"),
        LackRecord("torch_npu.x", Lack.NAME, None, 1, 3, "text"),
    )


@pytest.mark.slow
@given(
    pid=ANY,
    chip=TEXTS,
    torch=TEXTS,
    flags=ANY,
    mask=TEXTS,
    totals=st.tuples(*[ANY] * 8),
    cards=st.lists(st.tuples(*[ANY] * 10), max_size=MAX_CARDS),
    kinds=st.lists(st.tuples(NAMES, ANY, st.integers(1, 2**64 - 1)), max_size=40, unique_by=lambda kind: kind[0]),
)
def test_what_was_written_is_read(pid, chip, torch, flags, mask, totals, cards, kinds):
    data = packed(
        pid=pid, chip=chip, torch=torch, flags=flags, mask=mask, totals=totals, cards=cards, kinds=kinds
    )  # fmt: skip
    found = parse(data)
    assert found is not None
    assert (found.pid, found.chip, found.torch_version) == (pid, chip, torch)
    assert found.hbm_by_user == bool(flags & 1)
    assert (
        found.copies_to_card, found.bytes_to_card, found.copies_from_card, found.bytes_from_card,
        found.copies_between, found.bytes_between, found.synchronisations, found.operator_calls,
    ) == totals  # fmt: skip
    assert [
        (card.physical, card.capacity, card.allocated, card.peak_allocated, card.reserved, card.peak_reserved,
         card.allocations, card.oom_retries, card.ooms, card.kernels)
        for card in found.cards
    ] == cards  # fmt: skip
    assert [card.index for card in found.cards] == list(range(len(cards)))
    assert [card.used for card in found.cards] == [card[5] > 0 or card[9] > 0 for card in cards]
    assert found.mask == (mask if flags & 2 else None)
    assert found.operators == {name: calls for name, _, calls in kinds}
    assert found.undocumented == {name: dtypes for name, dtypes, _ in kinds if dtypes}
    assert counters.names(data) == [name for name, _, _ in kinds]


def test_operators_that_never_ran_are_left_out():
    found = parse(packed(kinds=[("aten::add", 0, 3), ("aten::mul", 0, 0)]))
    assert found is not None
    assert found.operators == {"aten::add": 3}


def test_an_operator_in_two_places_is_counted_once():
    # The last place stands for all that found none of their own; two threads may also take a place each.
    found = parse(packed(kinds=[("aten::add", 0, 3), ("aten::mul", 0, 1), ("aten::add", 0, 4)]))
    assert found is not None
    assert found.operators == {"aten::add": 7, "aten::mul": 1}


def test_counts_beyond_the_places_are_cut():
    data = bytearray(packed(cards=[(0,) * 10] * MAX_CARDS))
    struct.pack_into("<Q", data, 152, 2**40)  # number of cards
    struct.pack_into("<Q", data, 160 + 64 + 16 * 80, 2**40)  # number of kinds
    found = parse(bytes(data))
    assert found is not None
    assert len(found.cards) == MAX_CARDS
    assert found.operators == {}


def test_texts_that_fill_their_place_or_are_no_text():
    data = bytearray(packed())
    data[16:48] = b"x" * 32
    data[48:80] = bytes([0xFF, 0xFE, 0x41]) + bytes(29)
    found = parse(bytes(data))
    assert found is not None
    assert found.chip == "x" * 32
    assert found.torch_version == "\ufffd\ufffdA"


@pytest.mark.parametrize("magic", [bytes(8), b"TOPROPE\x00", b"TOPROPE\x02", b"toprope\x01"])
def test_a_file_of_another_kind_or_not_yet_filled_in(magic: bytes):
    assert parse(packed(magic=magic)) is None


@given(st.integers(0, SIZE - 1))
def test_a_file_cut_short(length: int):
    assert parse(packed()[:length]) is None


@given(st.binary(max_size=300))
def test_any_bytes_at_all(data: bytes):
    assert parse(data) is None
    found = parse(packed()[:8] + data + bytes(SIZE - len(data)))
    assert found is not None
    assert len(found.cards) <= MAX_CARDS


def test_bytes_after_the_end_do_not_matter():
    assert parse(packed(pid=7) + b"later versions may write more") == parse(packed(pid=7))


def test_reading_files(tmp_path: Path):
    for name, data in {
        "20-1.counters": packed(pid=20),
        "3-1.counters": packed(pid=3),
        "4-1.counters": packed()[:1000],
        "5-1.counters": b"",
        "notes.txt": packed(pid=9),
    }.items():
        (tmp_path / name).write_bytes(data)
    assert [found.pid for found in read_run(tmp_path)] == [3, 20]
    assert read(tmp_path / "5-1.counters") is None
    found = read(tmp_path / "3-1.counters")
    assert isinstance(found, counters.Counters)
    assert read_run(tmp_path / "nowhere") == []
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "nowhere" / "1.counters")

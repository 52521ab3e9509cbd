"""Cores on which operators run, and the blocks that limits leave them.

Holds src/toprope/support/operator_kinds.py and its table.
"""

import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import toprope
from toprope.sim.distributed.members import Members
from toprope.support.operator_kinds import Blocks, OperatorKind, assumed, kind_of

DATA = tomllib.loads((Path(toprope.__file__).parent / "support" / "operator_kinds.toml").read_text(encoding="utf-8"))
CORES = st.integers(0, 50)
LIMITS = st.tuples(CORES, CORES)
RATIOS = {"cube": (1, 0), "vector": (0, 1), "mix": (1, 2), "mix_aiv": (0, 1), "aicpu": (0, 0)}
KINDS = {engine: OperatorKind(engine, ratio) for engine, ratio in RATIOS.items()}


def test_every_row_has_a_kind_and_a_source_and_no_operator_two_rows() -> None:
    seen: list[str] = []
    for row in DATA["row"]:
        assert row["kind"] in KINDS
        assert ("ratio" in row) == (row["kind"] == "mix")
        assert row["source"].split()
        assert all(source.partition("/")[0] in DATA["sources"] for source in row["source"].split())
        seen += row["operators"].split()
    assert len(seen) == len(set(seen))
    assert all(re.fullmatch(r"(aten|npu)::\w+\*?", operator) for operator in seen)
    for source in DATA["sources"].values():
        assert source["url"].startswith("https://")
        assert source["what"]


@pytest.mark.parametrize(
    ("operator", "profiler"),
    [
        ("aten::mm", "AI_CORE"), ("aten::convolution_overrideable", "AI_CORE"), ("aten::add", "AI_VECTOR_CORE"),
        ("aten::add_", "AI_VECTOR_CORE"), ("aten::_foreach_addcmul_", "AI_VECTOR_CORE"),
        ("aten::_foreach_norm", "MIX_AIV"), ("aten::nonzero", "MIX_AIV"), ("aten::searchsorted", "AI_CPU"),
        ("aten::scaled_dot_product_attention", "MIX_AIC"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu_backward", "MIX_AIC"),
    ],
)  # fmt: skip
def test_operators_that_are_described(operator: str, profiler: str) -> None:
    assert kind_of(operator).profiler == profiler
    assert not assumed(operator)


def test_an_unknown_operator_counts_as_one_of_the_vector_cores() -> None:
    kind = kind_of("mine::special")
    assert (kind.engine, kind.ratio, kind.assumed) == ("vector", (0, 1), True)
    assert assumed("mine::special")


@given(LIMITS, st.none() | st.integers(1, 60))
def test_blocks_are_within_the_limits_or_one(limits: tuple[int, int], wanted: int | None) -> None:
    for engine, kind in KINDS.items():
        found = kind.blocks(limits, "910B2", wanted)
        if engine == "aicpu":
            assert found == Blocks(0, 0, 0)
            continue
        assert (found.cube, found.vector) == (found.blocks * kind.ratio[0], found.blocks * kind.ratio[1])
        within = found.cube <= limits[0] and found.vector <= limits[1]
        assert found.exceeds == (not within)
        assert within or found.blocks == 1
        assert wanted is None or found.blocks <= max(wanted, 1)
        if within and wanted is None:  # one more would not fit
            more = (found.cube + kind.ratio[0], found.vector + kind.ratio[1])
            assert more[0] > limits[0] or more[1] > limits[1]


@pytest.mark.parametrize(
    ("engine", "limits", "blocks"),
    [
        ("cube", (4, 10), Blocks(4, 4, 0)), ("vector", (4, 10), Blocks(10, 0, 10)), ("mix", (4, 10), Blocks(4, 4, 8)),
        ("mix", (8, 5), Blocks(2, 2, 4)), ("mix", (4, 1), Blocks(1, 1, 2, exceeds=True)),
        ("cube", (24, 1), Blocks(24, 24, 0)), ("vector", (24, 0), Blocks(1, 0, 1, exceeds=True)),
    ],
)  # fmt: skip
def test_blocks_of_the_specification(engine: str, limits: tuple[int, int], blocks: Blocks) -> None:
    assert KINDS[engine].blocks(limits, "910B1") == blocks


def test_other_chips() -> None:
    assert KINDS["mix_aiv"].blocks((8, 7), "310P3") == Blocks(15, 8, 7)
    assert KINDS["mix_aiv"].blocks((3, 2), "310P3", 4) == Blocks(4, 3, 1)
    assert KINDS["mix_aiv"].blocks((3, 9), "910B1") == Blocks(9, 0, 9)
    for engine in ("vector", "mix", "mix_aiv", "cube"):  # no vector cores: all on AI Cores
        assert KINDS[engine].blocks((30, 0), "910A") == Blocks(30, 30, 0)


def test_members_of_a_group_name_it_alike_and_no_other_group_so() -> None:
    names = {
        Members(name, ranks, rank, len(ranks) or 4).name
        for name, ranks in (("0", ()), ("3", (0, 1)), ("3", (2, 3)), ("n" * 60, (0, 1)), ("n" * 60, (0, 2)), ("", ()))
        for rank in (0, 1)
    }
    assert len(names) == 6
    assert max(map(len, names)) <= 24


def test_messages_are_collectives_of_two_counted_each_way() -> None:
    sender, receiver = Members("0", (), 0, 4), Members("0", (), 3, 4)
    for number in range(2):
        assert sender.next((0, 3), True) == ("0/0>3", 0, 2, number)
        assert receiver.next((0, 3), True) == ("0/0>3", 1, 2, number)
    assert receiver.next((3, 0), True) == ("0/3>0", 0, 2, 0)
    assert sender.next(None, True)[1] == -1
    assert [sender.next(None, False)[3] for _ in range(3)] == [0, 1, 2]

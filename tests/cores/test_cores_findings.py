"""`cores.findings`, the checks besides the proof of deadlocks: what each finds, what it leaves alone, and its text."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toprope.collectives import collective_kind, hccl_minimum
from toprope.cores import Card, Collective, Communicator, OpId, Program, record
from toprope.cores import findings as module
from toprope.cores.findings import RULES, Level, findings, unknown_cores
from toprope.cores.model import Op, Stream
from toprope.cores.order import Graph
from toprope.cores.overlap import Overlap

FOLDER = Path(module.__file__).parent


def program(*streams: tuple[str, list[dict[str, Any]]], engine: str = "aiv", chip: str = "", **groups: str) -> Program:
    """Streams by the name of their card; the communicators are of all cards, or of those that `groups` says."""
    cards = sorted({card for card, _ in streams})
    names = {op["collective"] for _, ops in streams for op in ops if "collective" in op}
    made = tuple(Communicator(name, tuple(groups.get(name, " ".join(cards)).split()), engine) for name in sorted(names))
    counts: dict[tuple[str, str], int] = {}

    def op(card: str, given: dict[str, Any]) -> Op:
        given = dict(given)
        if "collective" in given:
            name = given.pop("collective")
            number = counts.get((card, name), 0)
            counts[card, name] = number + 1
            given["collective"] = Collective(name, given.pop("sequence", number))
        return Op(**{"kind": "AI_VECTOR_CORE"} | given)

    return Program(
        tuple(Card(card, 24, 48, chip) for card in cards),
        tuple(Stream(f"s{at}", card, tuple(op(card, each) for each in ops)) for at, (card, ops) in enumerate(streams)),
        made,
    )


def call(name: str, group: str, vector: int = 16, **more: Any) -> dict[str, Any]:
    return {"name": name, "vector": vector, "collective": group} | more


def rules(of: Program) -> list[str]:
    return [each.rule for each in findings(of)]


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    ops = [call("AllReduce", "dp", 24), {"name": "Add", "vector": 48}]
    assert findings(program(("0", ops), ("1", ops), chip="910B1")) == ()


def test_a_collective_without_a_member_is_an_error() -> None:
    broken = program(("0", [call("AllReduce", "dp"), call("AllReduce", "dp")]), ("1", [call("AllReduce", "dp")]))
    (found,) = findings(broken)
    assert (found.level, found.rule, found.ops) == (Level.ERROR, "missing-rank", ((0, 1),))
    assert found.text == "AllReduce[s0:1](0) is dp#1, which has no member on card 1: it never finishes."


def test_two_collectives_in_different_order() -> None:
    one = [call("AllReduce", "dp", sequence=0), call("AllReduce", "dp", sequence=1)]
    found = {each.rule: each for each in findings(program(("0", one), ("1", one[::-1])))}
    assert list(found) == ["desync", "cyclic-wait"]
    assert found["desync"].text == "card 0 runs dp#0 before dp#1, card 1 the other way round."
    assert found["desync"].ops == ((0, 0), (0, 1), (1, 0), (1, 1))
    assert "AllReduce[s0:0](0)" in found["cyclic-wait"].text


def test_a_collective_that_is_another_one_on_another_card() -> None:
    """Read from a trace, collectives are counted, so a rank that has another order shows another collective."""
    one = [call("hcom_allReduce__606_0_1", "dp"), call("hcom_allGather__606_1_1", "dp")]
    (found,) = findings(program(("0", one), ("1", one[::-1])))
    assert (found.rule, found.level, found.ops) == ("desync", Level.ERROR, ((0, 0), (1, 0)))
    assert found.text.startswith("dp#0 is not the same collective on all cards: hcom_allReduce__606_0_1(0), ")
    assert found.text.endswith("1 more like it.")


def test_names_that_say_no_collective_are_not_compared() -> None:
    assert rules(program(("0", [call("layer 3", "dp")]), ("1", [call("layer three", "dp")]))) == []


def test_events_that_wait_in_a_circle() -> None:
    broken = program(
        ("0", [{"name": "A", "vector": 1, "waits": ("b",), "records": ("a",)}]),
        ("0", [{"name": "B", "vector": 1, "waits": ("a",), "records": ("b",)}]),
    )
    (found,) = findings(broken)
    assert (found.level, found.rule) == (Level.ERROR, "cyclic-wait")
    assert found.text.endswith("in a circle: A(0) -> B(0) -> A(0).")


def test_a_barrier_over_more_blocks_than_its_limit() -> None:
    wide = {"name": "NonZero", "vector": 48, "sync_all": True, "limit": (24, 32)}
    (found,) = findings(program(("0", [wide, wide, wide | {"sync_all": False}, wide | {"limit": (24, 48)}])))
    assert (found.level, found.rule, found.ops) == (Level.ERROR, "sync-all-over-limit", ((0, 0),))
    assert "a barrier over 48 vector cores and a limit of 24 cube and 32 vector cores" in found.text
    assert found.text.endswith("1 more like it.")


def test_two_communicators_on_vector_cores_at_once() -> None:
    streams = [(card, [call("AllReduce", group)]) for card in "01" for group in ("tp", "ep")]
    (found,) = findings(program(*streams))
    assert (found.level, found.rule, found.ops) == (Level.WARNING, "two-aiv-communicators", ((0, 0), (1, 0)))
    assert (
        rules(program(*[(card, [call("AllReduce", group)]) for card in "01" for group in ("tp", "ep")], engine=""))
        == []
    )


def test_two_communicators_that_follow_each_other() -> None:
    in_one_stream = [call("AllReduce", "tp"), call("AllReduce", "ep")]
    assert rules(program(("0", in_one_stream), ("1", in_one_stream))) == []
    by_events = [
        each
        for card in "01"
        for each in (
            (card, [call("AllReduce", "tp", records=(f"e{card}",))]),
            (card, [call("AllReduce", "ep", waits=(f"e{card}",))]),
        )
    ]
    assert rules(program(*by_events)) == []


def test_ranks_with_unequal_limits() -> None:
    found = findings(
        program(("0", [call("AllReduce", "dp", limit=(24, 16))]), ("1", [call("AllReduce", "dp", limit=(24, 32))]))
    )
    assert [(each.level, each.rule) for each in found] == [(Level.WARNING, "unequal-limits")]
    assert "AllReduce(0) may use 24 cube and 16 vector cores, AllReduce(1) may use 24 cube and 32" in found[0].text
    assert rules(program(("0", [call("AllReduce", "dp", 16)]), ("1", [call("AllReduce", "dp", 24)]))) == [
        "unequal-limits"
    ]


def test_fewer_cores_than_hccl_recommends() -> None:
    few = program(*[(card, [call("ReduceScatter", "dp"), call("AllGather", "dp")]) for card in "01"], chip="910B1")
    (found,) = findings(few)
    assert (found.level, found.rule) == (Level.WARNING, "below-hccl-minimum")
    assert found.text == (
        "ReduceScatter(0) may use 16 vector cores; HCCL recommends at least 24 on a 910B1. 1 more like it."
    )
    enough = program(*[(card, [call("ReduceScatter", "dp", limit=(24, 24))]) for card in "01"], chip="910B1")
    assert rules(enough) == []  # it may use 24; HCCL takes fewer where the data are few


def test_operators_of_which_the_record_says_neither_cores_nor_kind() -> None:
    silent = [{"name": "A", "kind": ""}, {"name": "B", "kind": "AI_CPU"}, call("AllReduce", "dp", 0, kind="")]
    vague = program(("0", silent), ("1", silent))
    (found,) = findings(vague)
    assert (found.level, found.rule) == (Level.WARNING, "unknown-cores")
    assert "A(0)" in found.text
    assert "4 operators in all" in found.text
    assert unknown_cores(vague) == ((0, 0), (0, 2), (1, 0), (1, 2))
    assert unknown_cores(program(("0", silent), ("1", silent), engine="host")) == ((0, 0), (1, 0))


@pytest.mark.parametrize(
    ("name", "chip", "ranks", "cores"),
    [
        ("AllReduce", "910B3", 8, 24), ("hcom_reduceScatter__606_0_1", "910B1", 2, 24), ("allgather", "910B4", 64, 16),
        ("hccl::alltoall", "910B1", 8, 16), ("Broadcast", "910C", 12, 12), ("AllGather", "910_9392", 8, 2),
        ("aiv_all_gather_bfloat16_t", "910C", 41, 3), ("AllReduce", "910C", 41, 4), ("ReduceScatter", "910C", 41, 3),
        ("AlltoAllV", "910C", 400, 20), ("AllReduce", "950", 8, None), ("DispatchCombine", "910B1", 8, None),
        ("AllReduce", "", 8, None), ("AllReduce", "no chip", 8, None), ("layer 3", "910B1", 8, None),
    ],
)  # fmt: skip
def test_what_hccl_recommends(name: str, chip: str, ranks: int, cores: int | None) -> None:
    found = hccl_minimum(name, chip, ranks)
    assert (found and found.cores) == cores
    assert found is None or found.source.startswith("https://")


def test_the_data_say_where_they_come_from() -> None:
    for row in tomllib.loads((FOLDER.parent / "support" / "all_blocks.toml").read_text())["operator"]:
        assert {"kinds", "sync_all", "source"} <= set(row) <= {"kinds", "sync_all", "communicates", "source"}
        assert row["source"].startswith("https://")
    hccl = tomllib.loads((FOLDER.parent / "collectives.toml").read_text())
    for row in hccl["minimum"]:
        assert (
            {"chips", "collective", "least", "source"}
            <= set(row)
            <= {"chips", "collective", "least", "source", "ranks", "even"}
        )
        assert set(row["collective"]) <= set(hccl["kinds"])
        assert row["source"] in hccl["sources"]
    for row in hccl["newer"]:
        assert set(row) == {"chips", "collective", "dtypes", "releases", "source"}
        assert row["source"] in hccl["sources"]
    assert [collective_kind(kind) for kind in hccl["kinds"]] == hccl["kinds"]


def test_every_rule_has_a_level_and_the_page_describes_it() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "cores.md").read_text(encoding="utf-8")
    for rule, level in RULES.items():
        assert f"| `{rule}` | {level} |" in page


@st.composite
def ordered(draw: st.DrawFn) -> Program:
    """Programs of two cards with events and collectives, such as can run or not."""
    streams: list[tuple[str, list[dict[str, Any]]]] = [(card, []) for card in "0011"]
    for number in range(draw(st.integers(1, 8))):
        stream = draw(st.integers(0, 3))
        waits = draw(st.lists(st.sampled_from(range(number)), max_size=1)) if number else []
        local = {"name": "x", "vector": 1, "records": (f"e{number}",), "waits": tuple(f"e{each}" for each in waits)}
        streams[stream][1].append(local)
        if draw(st.booleans()):
            for card in (0, 2):
                streams[card + draw(st.integers(0, 1))][1].append(call("AllReduce", "dp", sequence=number))
    return program(*streams)


def reachable(made: Program, start: OpId) -> set[OpId]:
    """Operators that must have finished before this one begins, by following every edge."""
    seen: set[OpId] = set()
    stack = list(made.before(start))
    while stack:
        id = stack.pop()
        if id in seen:
            continue
        seen.add(id)
        stack += made.before(id)
        collective = made.op(id).collective
        for peer in made.members[collective] if collective is not None else ():
            seen.add(peer)
            stack += made.before(peer)
    return seen


@pytest.mark.slow
@given(ordered())
def test_what_can_be_active_together_is_what_neither_must_have_finished_before_the_other(made: Program) -> None:
    if any(each.rule == "cyclic-wait" for each in findings(made)):
        return
    overlap = Overlap(Graph.of(made), range(len(made.streams)))
    before = {id: reachable(made, id) for id, _ in made.ops()}
    for id, _ in made.ops():
        for stream in range(len(made.streams)):
            if stream != id[0]:
                others = [(stream, at) for at in range(len(made.streams[stream].ops))]
                expected = [at for at in others if at not in before[id] and id not in before[at]]
                assert [(stream, at) for at in overlap.together(id, stream)] == expected


def test_findings_of_what_was_read_name_the_place_in_the_program() -> None:
    read = record.read(Path(__file__).resolve().parents[2] / "examples" / "cores" / "circle.json")
    found = {each.rule: each.ops for each in findings(read)}
    assert {read.op(id).source.rpartition(": ")[2] for id in found["desync"]} == {
        f"streams[{stream}].ops[{at}]" for stream in (0, 1) for at in (0, 1)
    }

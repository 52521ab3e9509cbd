"""JSON schedules (`formats.schedule_json`): nothing is lost there and back; a bad one is one error with its place."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toprope.cores import Card, Collective, Communicator, Op, Program, Stream, check, plan_program, record
from toprope.cores.formats.schedule_json import ENGINES, TIMINGS
from toprope.errors import PlanError, ScheduleError

NAMES = st.text(min_size=1, max_size=6)
FIGURE = Path(__file__).resolve().parents[2] / "examples" / "cores" / "figure.json"


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Any program that makes sense and whose collectives have all of their members."""
    cards = tuple(
        Card(
            name, draw(st.integers(0, 24)), draw(st.integers(0, 48)), draw(st.sampled_from(["", "910B1", "950PR_9599"]))
        )
        for name in draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    )
    groups = tuple(
        Communicator(
            name, tuple(draw(st.permutations([card.name for card in cards]))), draw(st.sampled_from(["", *ENGINES]))
        )
        for name in draw(st.lists(NAMES, max_size=2, unique=True))
    )
    queues: list[tuple[str, Card, list[Op]]] = [
        (draw(NAMES), draw(st.sampled_from(cards)), []) for _ in range(draw(st.integers(0, 4)))
    ]
    queues += [("comm", card, []) for card in cards if groups]
    events = iter(range(100))
    recorded: list[str] = []

    def op(card: Card, collective: Collective | None = None) -> Op:
        time = draw(st.none() | st.floats(0, 1e9))
        records = tuple(f"e{next(events)}" for _ in range(draw(st.integers(0, 2))))
        waits = tuple(draw(st.lists(st.sampled_from(recorded), max_size=2))) if recorded else ()
        recorded.extend(records)
        cube = draw(st.integers(0, card.cube))
        vector = draw(st.sampled_from([0, cube, 2 * cube]) if cube else st.integers(0, card.vector))
        return Op(
            draw(NAMES), cube, min(vector, card.vector // max(cube, 1) * cube) if cube else vector, draw(st.booleans()),
            collective, waits, records, time, draw(st.sampled_from(["", *TIMINGS])) if time is not None else "",
            draw(st.sampled_from(["", "AI_CORE"])),
            draw(st.none() | st.tuples(st.integers(0, card.cube), st.integers(0, card.vector))),
        )  # fmt: skip

    for _, card, ops in queues:
        ops += [op(card) for _ in range(draw(st.integers(0, 3)))]
    for group in groups:
        for sequence in range(draw(st.integers(0, 2))):
            for name in group.cards:
                _, card, ops = draw(st.sampled_from([queue for queue in queues if queue[1].name == name]))
                ops.insert(draw(st.integers(0, len(ops))), op(card, Collective(group.name, sequence)))
    return Program(cards, tuple(Stream(name, card.name, tuple(ops)) for name, card, ops in queues), groups)


@pytest.mark.slow
@given(programs())
def test_a_program_is_the_same_after_json(program: Program) -> None:
    text = record.to_json(program)
    assert record.from_json(text) == program
    assert json.loads(text) == record.to_data(program)


@pytest.mark.slow
@given(programs(), st.data())
def test_a_text_that_is_cut_short_is_an_error_that_says_so(program: Program, data: st.DataObject) -> None:
    text = record.to_json(program).rstrip()
    cut = text[: data.draw(st.integers(0, len(text) - 1))]
    with pytest.raises(ScheduleError, match=r"^x\.json is cut short|^x\.json is not JSON") as caught:
        record.from_json(cut, "x.json")
    assert "x.json: line " in caught.value.looked_at


def test_every_operator_knows_where_it_was_read() -> None:
    program = record.from_json(FIGURE.read_text(), "figure.json")
    sources = [op.source for _, op in program.ops()]
    assert sources == [f"figure.json: streams[{number}].ops[0]" for number in range(6)]
    again = record.read(FIGURE)
    assert again == program
    assert next(again.ops())[1].source == f"{FIGURE}: streams[0].ops[0]"


def test_what_a_schedule_leaves_out_stays_unknown() -> None:
    streams = [{"name": "s", "card": "0", "ops": [{"name": "x"}]}]
    program = record.from_data({"cards": [{"name": "0", "chip": "ascend910b3"}], "streams": streams})
    assert program.cards == (Card("0", 20, 40, "910B3"),)
    assert program.op((0, 0)) == Op("x")
    assert program.op((0, 0)).microseconds is None


def test_notes_are_read_over_and_expect_too() -> None:
    plain = json.loads(record.to_json(record.read(FIGURE)))
    noted = {"note": "a", "expect": {"verdict": "deadlock"}, **plain}
    for tables in (noted["cards"], noted["communicators"], noted["streams"], noted["streams"][0]["ops"]):
        tables[0]["note"] = ["anything", 1]
    assert record.from_data(noted) == record.from_data(plain)


def test_a_limit_of_one_kind_leaves_the_other_at_what_the_card_has() -> None:
    data = schedule()
    data["streams"][0]["ops"][0]["limit"] = {"vector": 8}
    assert record.from_data(data).op((0, 0)).limit == (24, 8)


def schedule() -> dict[str, Any]:
    ops = [
        {"name": "AllReduce", "vector": 24, "collective": "dp"},
        {"name": "AllGather", "vector": 8, "collective": "dp"},
    ]
    return {
        "cards": [{"name": "0", "chip": "910B1"}, {"name": "1", "cube": 24, "vector": 48}],
        "communicators": [{"name": "dp", "cards": ["0", "1"]}],
        "streams": [{"name": "s", "card": card, "ops": copy.deepcopy(ops)} for card in ("0", "1")],
    }


def test_collectives_are_counted_on_each_card() -> None:
    program = record.from_data(schedule())
    assert list(program.members) == [Collective("dp", 0), Collective("dp", 1)]
    assert program.members[Collective("dp", 1)] == ((0, 1), (1, 1))


# path of keys, what to put there (... removes it), what the error says, where, and what to do
WRONG: list[tuple[list[Any], Any, str, str, str]] = [
    (["streams"], ..., "'streams' is missing.", "x.json", "a list"),
    (["streams"], {}, "a list belongs there, not a table.", "x.json: streams", "write a list"),
    (["streams", 0], 7, "a table belongs there, not a whole number.", "x.json: streams[0]", ""),
    (
        ["streams", 0, "ops", 1, "vectors"],
        3,
        "a schedule has no 'vectors' there.",
        "streams[0].ops[1]: vectors",
        "'vector'?",
    ),
    (["banana"], 3, "a schedule has no 'banana' there.", "x.json: banana", "there can be cards"),
    (["streams", 0, "ops", 1, "name"], ..., "'name' is missing.", "x.json: streams[0].ops[1]", "add 'name'"),
    (["streams", 0, "ops", 1, "name"], None, "a text belongs there, not nothing", "streams[0].ops[1]: name", ""),
    (["streams", 0, "ops", 0, "vector"], 1.5, "a whole number belongs there, not a number.", "ops[0]: vector", ""),
    (
        ["streams", 0, "ops", 0, "vector"],
        True,
        "a whole number belongs there, not true or false.",
        "ops[0]: vector",
        "",
    ),
    (["streams", 0, "ops", 0, "sync_all"], 1, "true or false belongs there", "ops[0]: sync_all", ""),
    (["streams", 0, "ops", 0, "waits"], "e", "a list belongs there, not a text.", "ops[0]: waits", ""),
    (["streams", 0, "ops", 0, "waits"], [1], "a text belongs there", "ops[0]: waits[0]", ""),
    (
        ["streams", 0, "ops", 0, "waits"],
        ["e"],
        "waits for event e, which nobody records",
        "x.json: streams[0].ops[0]",
        "",
    ),
    (["streams", 0, "ops", 0, "vector"], -1, "asks for fewer than 0 cores", "x.json: streams[0].ops[0]", ""),
    (["streams", 0, "ops", 0, "vector"], 49, "asks for more cores than card 0 has", "x.json: streams[0].ops[0]", ""),
    (
        ["streams", 0, "ops", 0, "limit"],
        {"cube": 25},
        "the limit 25 cube, 48 vector is not one",
        "ops[0]: limit",
        "EE1003",
    ),
    (["streams", 0, "ops", 0, "limit"], {"aic": 2}, "a schedule has no 'aic' there.", "ops[0]: limit: aic", ""),
    (["streams", 0, "ops", 0, "timing"], "measured", "timing without a time.", "streams[0].ops[0]", ""),
    (["streams", 0, "ops", 0, "microseconds"], -2, "cannot take -2.0 microseconds", "streams[0].ops[0]", ""),
    (["streams", 0, "ops", 0, "collective"], "tp", "there is no communicator tp.", "streams[0].ops[0]", ""),
    (["streams", 0, "ops", 0, "sequence"], -1, "a sequence is below 0.", "ops[0]: sequence", ""),
    (
        ["streams", 0, "ops", 0],
        {"name": "x", "sequence": 1},
        "a sequence without a collective.",
        "ops[0]",
        "communicator",
    ),
    (["streams", 1, "card"], "7", "is on card '7', which is not there.", "x.json: streams[1]; cards 0, 1", "cards"),
    (["cards", 0, "chip"], "910Z", "card 0: there is no chip '910Z'.", "x.json: cards[0]", ""),
    (["cards", 1, "vector"], -4, "card 1 has fewer than 0 cores.", "x.json: cards[1]: vector", ""),
    (["cards", 1], {"name": "0", "chip": "910B1"}, "is on card '1', which is not there", "streams[1]; cards 0", ""),
    (["communicators", 0, "engine"], "cuda", "engine 'cuda' is not known.", "communicators[0]: engine", "aiv"),
    (["communicators", 0, "cards"], ["0", "9"], "has cards that are not there", "x.json: ", ""),
]


@pytest.mark.parametrize(("path", "value", "what", "where", "do"), WRONG)
def test_what_makes_no_sense_is_one_error_that_names_the_place(
    path: list[Any], value: Any, what: str, where: str, do: str
) -> None:
    data = schedule()
    inner: Any = data
    for key in path[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    with pytest.raises(ScheduleError) as caught:
        record.from_json(json.dumps(data), "x.json")
    assert what in caught.value.what
    assert where in caught.value.looked_at
    assert do in caught.value.do


def test_collectives_in_two_streams_of_a_card_need_their_sequence() -> None:
    data = schedule()
    data["streams"].append({"name": "t", "card": "0", "ops": [{"name": "Broadcast", "vector": 8, "collective": "dp"}]})
    with pytest.raises(ScheduleError, match=r"which collective of dp Broadcast is cannot be counted") as caught:
        record.from_data(data, "x.json")
    assert "x.json: streams[2].ops[0]" in caught.value.looked_at


@pytest.mark.parametrize(
    ("text", "what", "where"),
    [
        ("", "x.json is cut short.", "line 1, column 1"),
        ("[" * 100_000, "x.json is nested too deep", "x.json"),
        ("{'cards': []}", "x.json is not JSON", "line 1, column 2"),
        ("[]", "a table belongs there, not a list.", "x.json"),
        ('{"cards": [],\n "streams": [nope]}', "x.json is not JSON", "line 2"),
    ],
)
def test_what_is_no_schedule_at_all(text: str, what: str, where: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        record.from_json(text, "x.json")
    assert what in caught.value.what
    assert where in caught.value.looked_at


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for content, what in ((None, "cannot be read: No such file"), (b"\xff\xfe{}", "is no text in UTF-8")):
        path = tmp_path / "x.json"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ScheduleError, match=what):
            record.read(path)
    with pytest.raises(ScheduleError, match="there is no file to read"):
        record.read()
    with pytest.raises(ScheduleError, match="several files are read together only"):
        record.read(FIGURE, FIGURE.with_name("circle.json"))


# Found by a user's trial: each was called safe.


def two_streams(*ops: dict[str, Any], cards: str = "0", communicators: list[dict[str, Any]] | None = None) -> Program:
    names = [{"name": card, "chip": "910B1"} for card in cards]
    streams = [{"name": f"{card}.{at}", "card": card, "ops": [op]} for card in cards for at, op in enumerate(ops)]
    return record.from_data({"cards": names, "communicators": communicators or [], "streams": streams})


def test_a_kernel_of_known_kind_and_unknown_cores_counted_as_using_none() -> None:
    groups = [{"name": name, "cards": ["0", "1"], "engine": "aiv"} for name in ("ep", "tp")]
    dispatch = {"name": "MoeDistributeDispatch", "kind": "MIX_AIV", "collective": "ep"}
    gather = {"name": "aiv_all_gather", "kind": "AI_VECTOR_CORE", "collective": "tp"}
    assert check(two_streams(dispatch, gather, cards="01", communicators=groups)).verdict == "deadlock"
    local = {"name": "Mine", "kind": "MIX_AIC"}
    assert check(two_streams(local, local)).verdict == "deadlock"
    assert check(two_streams({"name": "Mine", "kind": "AI_CPU"}, local)).verdict == "safe"


def test_a_barrier_that_json_leaves_out_was_none() -> None:
    program = two_streams({"name": "NonZero", "vector": 48}, {"name": "Sort", "vector": 48})
    assert check(program).verdict == "deadlock"
    assert not any(op.assumed for _, op in program.ops())
    unknown = two_streams({"name": "Mine", "vector": 48}, {"name": "Add", "vector": 48})
    assert [(op.sync_all, op.assumed) for _, op in unknown.ops()] == [(True, True), (False, False)]
    said = two_streams({"name": "Mine", "vector": 48, "sync_all": False}, {"name": "Sort", "vector": 48})
    assert check(said).verdict == "safe"
    assert record.from_json(record.to_json(said)) == said


def test_a_barrier_over_its_limit_was_called_safe() -> None:
    limited = {"name": "N", "vector": 40, "sync_all": True, "limit": {"vector": 8}}
    program = two_streams(limited)
    result = check(program)
    assert (result.verdict, "it never opens" in result.proof) == ("deadlock", True)
    with pytest.raises(PlanError, match="never finishes"):
        plan_program(program)


def test_cores_without_a_ratio_were_one_indivisible_block() -> None:
    with pytest.raises(ScheduleError, match="12 cube and 25 vector cores are no whole number of blocks"):
        two_streams({"name": "N", "cube": 12, "vector": 25, "sync_all": True})
    assert check(two_streams(*[{"name": "N", "cube": 13, "vector": 26, "sync_all": True}] * 2)).verdict == "deadlock"

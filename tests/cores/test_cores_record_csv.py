"""kernel_details.csv of the vendor's profiler (`formats.profiler_csv`), in the columns of its releases.

One rank and several; an unknown must never make a program look safer than it is.
"""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toprope.cores import Card, Collective, Communicator, Discipline, Op, Program, Stream, record
from toprope.cores.check import check
from toprope.cores.findings import findings
from toprope.errors import ScheduleError

pytestmark = pytest.mark.native

# The columns of three releases of the profiler, and of msprof's op_summary.
OLD = (
    "Device_id,Model ID,Task ID,Stream ID,Name,Type,OP State,Accelerator Core,Start Time(us),Duration(us),"
    "Wait Time(us),Block Dim,Mix Block Dim,HF32 Eligible"
)
NEW = OLD.replace("Block Dim", "Block Num")
SUMMARY = (
    NEW.replace("Name,Type", "Op Name,OP Type").replace("Accelerator Core", "Task Type").replace("Start", "Task Start")
    .replace("Duration", "Task Duration").replace("Wait", "Task Wait")
)  # fmt: skip
STEPS = f"Step Id,{NEW}"


def row(
    name: str, core: str, start: float, blocks: object = 0, mixed: object = 0, stream: object = 2, kind: str = "",
    duration: object = 10.0, device: object = 0,
) -> str:  # fmt: skip
    begin = f"{device},4294967295,1,{stream},{name},{kind or name},dynamic,{core}"
    return f"{begin},{start}\t,{duration},0,{blocks},{mixed},NO"


def details(*rows: str, header: str = NEW) -> str:
    return "\n".join([header, *(f"7,{each}" if header is STEPS else each for each in rows)]) + "\n"


KERNELS = (
    row("aclnnMatmul_MatMulV2", "AI_CORE", 100.5, 20, kind="MatMulV2"),
    row("aclnnSwiGlu", "AI_VECTOR_CORE", 130, 22, stream=5, kind="SwiGlu"),
    row("aclnnFlash", "MIX_AIC", 90, 20, 40),
    row("aclnnMixed", "MIX_AIV", 140, 16, 8),
    row("aclnnIndex", "AI_CPU", 150, "N/A", "N/A", duration="N/A"),
)


@pytest.mark.parametrize("header", [OLD, NEW, SUMMARY, STEPS])
def test_kernels_are_on_their_streams_in_the_order_of_their_begin(header: str) -> None:
    program = record.from_csv({"k.csv": details(*KERNELS, header=header)}, "910B3")
    assert program.cards == (Card("0", 20, 40, "910B3"),)
    assert [(stream.name, [op.name for op in stream.ops]) for stream in program.streams] == [
        ("2", ["aclnnFlash", "aclnnMatmul_MatMulV2", "aclnnMixed", "aclnnIndex"]),
        ("5", ["aclnnSwiGlu"]),
    ]
    flash, matmul, mixed, index = program.streams[0].ops
    assert [op.cores for op in (flash, matmul, mixed, index)] == [(20, 40), (20, 0), (8, 16), (0, 0)]
    assert program.streams[1].ops[0].cores == (0, 22)
    assert (matmul.kind, matmul.microseconds, matmul.timing) == ("AI_CORE", 10.0, "profile")
    assert (index.kind, index.microseconds, index.timing) == ("AI_CPU", None, "")
    assert matmul.source == "k.csv: line 2"
    assert not any(op.waits or op.records or op.limit for _, op in program.ops())
    # MIX_AIV says it; of aclnnFlash and MatMulV2 no source says anything, and SwiGlu is known to have no barrier
    assert [(op.sync_all, op.assumed) for op in (flash, matmul, mixed, index)] == [
        (True, True), (True, True), (True, False), (False, False),
    ]  # fmt: skip
    assert not program.streams[1].ops[0].sync_all


def test_what_is_known_to_need_all_of_its_blocks_says_so_and_nothing_else() -> None:
    rows = [
        row("aclnnNonzero_NonZero", "AI_VECTOR_CORE", 1, 40, kind="NonZero"),
        row("combine", "AI_VECTOR_CORE", 2, 40, kind="MoeDistributeCombineV2"),
        row("aclnnSort", "AI_VECTOR_CORE", 3, 40, kind="Sort"),
        row("aclnnAdd", "AI_VECTOR_CORE", 4, 40, kind="Add"),
        row("mine", "AI_VECTOR_CORE", 5, 40, kind="MyKernel"),
        row("mine", "AI_VECTOR_CORE", 6, 96, kind="MyKernel"),  # it ended, in turns: its blocks do not wait
        row("mine", "AI_CPU", 7, kind="MyKernel"),
    ]
    program = record.from_csv({"k.csv": details(*rows)}, "910B3")
    assert [op.all_at_once for _, op in program.ops()] == [True, True, True, False, True, False, False]
    assert [op.assumed for _, op in program.ops()] == [False, False, False, False, True, False, False]
    assert [op.all_at_once for _, op in record.assuming_one_block(program).ops()] == [*[True] * 3, *[False] * 4]


FUSED = (
    "MoeDistributeDispatch", "MoeDistributeDispatchV3", "MoeDistributeCombine", "MoeDistributeCombineV4",
    "DispatchFFNCombine", "MatmulAllReduce", "AllGatherMatmul", "MatmulReduceScatter", "AlltoAllvGroupedMatMul",
)  # fmt: skip


@pytest.mark.parametrize("kind", [*FUSED, "Sort", "SomethingNew"])
def test_csv_of_mc2_and_unknown_kernels_was_called_safe_under_every_order(kind: str) -> None:
    ranks = {
        f"r{rank}.csv": details(
            row(f"aclnn{kind}", "AI_VECTOR_CORE", 100, 40, kind=kind, device=rank),
            row("aiv_all_gather_bfloat16_t", "AI_VECTOR_CORE", 101, 24, stream=3, duration=30, device=rank),
            hcom("allGather", "606", 0, 100, stream=4, duration=32, device=rank),
        )
        for rank in (0, 1)
    }
    program = record.from_csv(ranks, "910B3")
    found = check(program)
    assert found.verdict == "deadlock"
    if kind in FUSED:  # it waits for its peer on the other card, whichever way cores are handed out
        assert found.weaker[Discipline.D0B] == "deadlock"
    one = check(record.assuming_one_block(program)).verdict
    assert one == ("safe" if kind == "SomethingNew" else "deadlock")


def test_the_csv_of_one_rank_alone_was_called_safe() -> None:
    rows = [
        row("aiv_all_gather_bfloat16_t", "AI_VECTOR_CORE", 11, 40, stream=3),
        hcom("allGather", "606", 0, 10, stream=3),
        hcom("allReduce", "707", 0, 10, stream=5),
    ]
    found = findings(record.from_csv({"rank0.csv": details(*rows)}, "910B3"))
    assert [each.rule for each in found if each.level == "error"] == ["one-card-communicator"] * 2


KNOWN = ("NonZero", "Sort", "Add", "SwiGlu", "MoeDistributeDispatchV2", "Cast")
WITH_BARRIER = {"NonZero", "Sort", "MoeDistributeDispatchV2"}


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.lists(
            st.tuples(st.sampled_from([*KNOWN, "Mine", "Other"]), st.integers(1, 4), st.booleans()),
            min_size=1, max_size=3,
        ),
        min_size=1, max_size=3,
    )
)  # fmt: skip
def test_a_csv_is_never_more_optimistic_than_the_schedule_that_it_shows(
    streams: list[list[tuple[str, int, bool]]],
) -> None:
    """The booleans say whether a kernel has a barrier of which no source tells."""
    text, known = [], True
    ops: list[Stream] = []
    for number, stream in enumerate(streams):
        queue = []
        for place, (kind, tenths, hidden) in enumerate(stream):
            barrier = kind in WITH_BARRIER or (kind not in KNOWN and hidden)
            known &= kind in KNOWN
            text.append(row(kind, "AI_VECTOR_CORE", 10 * place + number, 10 * tenths, stream=number))
            queue.append(Op(kind, 0, 10 * tenths, barrier))
        ops.append(Stream(str(number), "0", tuple(queue)))
    truth = check(Program((Card("0", 20, 40, "910B3"),), tuple(ops), ())).verdict
    seen = check(record.from_csv({"k.csv": details(*text)}, "910B3")).verdict
    assert seen == truth if known else (seen, truth) != ("safe", "deadlock")


def test_more_blocks_than_cores_run_in_turns_but_not_with_a_barrier() -> None:
    elastic = details(row("aclnnAdd", "AI_VECTOR_CORE", 1, 96))
    assert record.from_csv({"k.csv": elastic}, "910B3").op((0, 0)).cores == (0, 40)
    barrier = details(row("aclnnNonzero", "AI_VECTOR_CORE", 1, 96, kind="NonZero"))
    with pytest.raises(ScheduleError, match="asks for more cores than card 0 has") as caught:
        record.from_csv({"k.csv": barrier}, "910B3")
    assert "k.csv: line 2" in caught.value.looked_at


def hcom(what: str, group: str, index: int, start: float, **more: object) -> str:
    return row(f"hcom_{what}__{group}_{index}_1", "HCCL", start, "N/A", "N/A", kind=f"hcom_{what}_", **more)  # type: ignore[arg-type]


def test_collectives_of_several_ranks_are_joined_by_communicator_and_number() -> None:
    ranks = {
        f"rank{rank}.csv": details(
            hcom("allReduce", "606", 4, 10, stream=9, device=rank),
            hcom("allGather", "606", 5, 30, stream=9, device=rank),
            hcom("broadcast", "112", 0, 50, stream="N/A", device=rank),
            row("hcom_send_612_3_1", "HCCL", 70, stream=9, device=rank),
        )
        for rank in (1, 0)
    }
    program = record.from_csv(ranks, "910B3")
    assert program.communicators == (Communicator("112", ("0", "1")), Communicator("606", ("0", "1")))
    assert program.members == {
        Collective("606", 0): ((0, 0), (2, 0)),
        Collective("606", 1): ((0, 1), (2, 1)),
        Collective("112", 0): ((1, 0), (3, 0)),
    }
    assert [stream.name for stream in program.streams] == ["9", "hccl 112", "9", "hccl 112"]
    assert program.op((0, 2)).collective is None  # a message: its partner is not in the file
    assert not program.incomplete
    assert program.op((2, 0)).source == "rank1.csv: line 2"


def test_a_collective_that_one_rank_has_not_is_incomplete() -> None:
    """The ranks' windows may differ; the numbers are those of the communicator, not the count in a file."""
    first = details(hcom("allReduce", "606", 4, 10), hcom("allReduce", "606", 5, 30))
    second = details(hcom("allReduce", "606", 5, 10, device=1), hcom("allReduce", "606", 6, 30, device=1))
    program = record.from_csv({"a": first, "b": second}, "910B3")
    assert sorted(map(str, program.incomplete)) == ["606#0", "606#2"]


def test_a_collective_on_vector_cores_has_the_blocks_and_the_stream_of_its_kernel() -> None:
    rows = [
        hcom("allGather", "606", 0, 10, stream="N/A"),
        row("aiv_all_gather_bfloat16_t", "AI_VECTOR_CORE", 11, 24, stream=38, duration=8),
        row("hcom_reduceScatter_AicpuKernel_503_490_1", "AI_CPU", 40, stream=3),
        hcom("reduceScatter", "503", 490, 40, stream=3),
        row("aiv_all_reduce_float16_t", "AI_VECTOR_CORE", 90, 16, stream=38),
    ]
    program = record.from_csv({"k.csv": details(*rows)}, "910B3")
    assert [(each.name, each.engine) for each in program.communicators] == [("503", "aicpu"), ("606", "aiv")]
    names = [(stream.name, [(op.name, op.vector, op.sync_all) for op in stream.ops]) for stream in program.streams]
    assert names == [
        ("3", [("hcom_reduceScatter__503_490_1", 0, False)]),
        # The second kernel's collective is not in the file: that it needs all of its blocks is known all the same.
        ("38", [("hcom_allGather__606_0_1", 24, False), ("aiv_all_reduce_float16_t", 16, True)]),
    ]
    assert program.op((1, 0)).microseconds == 10.0


def test_two_files_with_the_same_device_are_two_cards() -> None:
    text = details(hcom("allReduce", "606", 0, 10))
    program = record.from_csv({"node0.csv": text, "node1.csv": text}, "910B3")
    assert [card.name for card in program.cards] == ["0:0", "1:0"]
    assert len(program.members[Collective("606", 0)]) == 2


def without(column: str) -> str:
    header = NEW.split(",")
    place = header.index(column)
    return "\n".join(",".join(each.split(",")[:place] + each.split(",")[place + 1 :]) for each in (NEW, KERNELS[0]))


@pytest.mark.parametrize(
    ("text", "what", "where"),
    [
        (without("Stream ID"), "k.csv has no column 'Stream ID'.", "its columns: Device_id, Model ID"),
        (without("Block Num"), "k.csv has no column 'Block Num' or 'Block Dim'.", "its columns"),
        ("", "k.csv has no column 'Name'", "its columns: none"),
        (details(*KERNELS)[:-30], "k.csv is cut short.", "k.csv: line 6: 7 of 14 columns"),
        (details(row("x", "AI_CORE", 1, "many")), "'many' is no number for Block Num.", "k.csv: line 2"),
        (details(row("x", "AI_CORE", 1, -4)), "'-4' is no number for Block Num.", "k.csv: line 2"),
        (details(row("x", "AI_CORE", 1, 4, duration="long")), "'long' is no number for Duration(us).", "k.csv: line 2"),
        (details(row("x", "AI_CORE", float("nan"), 4)), "'nan' is no number for Start Time(us).", "k.csv: line 2"),
    ],
)
def test_what_is_no_such_file_is_one_error_that_names_the_line(text: str, what: str, where: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        record.from_csv({"k.csv": text}, "910B3")
    assert what in caught.value.what
    assert where in caught.value.looked_at
    assert caught.value.do


def test_files_are_read_by_what_is_in_them(tmp_path: Path) -> None:
    paths = [tmp_path / f"rank{rank}.txt" for rank in (0, 1)]
    for rank, path in enumerate(paths):
        path.write_text("\ufeff" + details(hcom("allReduce", "606", 0, 10, device=rank)), encoding="utf-8")
    assert len(record.read(*paths, chip="910B3").cards) == 2
    with pytest.raises(ScheduleError, match="the chip of the cards is not known") as caught:
        record.read(*paths)
    assert "--chip" in caught.value.do
    with pytest.raises(ScheduleError, match="there is no chip '910Z'"):
        record.read(*paths, chip="910Z")

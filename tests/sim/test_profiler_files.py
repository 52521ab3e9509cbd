"""The vendor's profiler files, from records that are written by hand.

Holds src/toprope/sim/profiler; columns and definitions are those of Ascend/pytorch, torch_npu/profiler/analysis.
"""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toprope.sim.profiler import Capture, HostOperator, Options, analyse, export_stacks, load, profiles, save
from toprope.sim.profiler.csv_views import tables
from toprope.sim.profiler.relations import relate
from toprope.sim.profiler.step_time import COMMUNICATION, COMPUTING, FREE, NOT_OVERLAPPED, overlaps
from toprope.sim.profiler.trace_view import events
from toprope.sim.tracing.records import CHROME_FRAME, Record, Trace, kernel_name, kernel_type

WALL = 10**15
ALL = Options(shapes=True, stack=True, memory=True, level="Level1", metrics="ACL_AICORE_PIPE_UTILIZATION")


def record(act, name, begin, end, *, device=0, stream=0, thread=7, kind="AI_CORE", **more):
    facts = {"bytes": 0, "address": 0, "dtype": "float32", "other_device": -1, "cube_cores": 4, "vector_cores": 0}
    return Record(act, name, begin, end, device, stream, thread, **(facts | more), kind=kind)


def host(name, begin, end, *, thread=7, **more):
    return HostOperator(name, WALL + begin, WALL + end, thread, **more)


def capture(records=(), operators=(), options=ALL, allocated=None):
    return Capture(options, Trace(42, 0, WALL, tuple(records), 0, "910B3"), tuple(operators), allocated or {})


def table(given, name):
    found = next(each for each in tables(given, relate(given)) if each.name == name)
    return [dict(zip(found.header, row, strict=True)) for row in found.rows]


STEPS = capture(
    [
        record("operator", "aten::mm", 11_000, 19_000),
        record("collective", "hccl::allreduce", 15_000, 25_000, thread=99, kind="COMMUNICATION", stream=3,
               communicator="world", rank=0, ranks=2, sequence=4),
        record("operator", "aten::relu", 41_000, 45_000, kind="AI_VECTOR_CORE", cube_cores=0, vector_cores=8),
    ],
    [
        host("ProfilerStep#2", 5_000, 38_000),
        host("aten::matmul", 9_000, 22_000, shapes="4,8;8,4", stack=("a.py(3): f", "a.py(9): <module>")),
        host("aten::mm", 10_500, 20_000, shapes="4,8;8,4;"),
        host("aten::addmm_inside", 13_000, 17_000),
        host("c10d::allreduce_", 14_500, 16_000, thread=8),
        host("ProfilerStep#3", 39_000, 60_000),
        host("aten::relu", 40_000, 46_000, shapes="4,4"),
    ],
)  # fmt: skip


def test_a_kernel_belongs_to_the_innermost_operator_around_it_and_the_cpu_s_own_are_left_out():
    relations = relate(STEPS)
    assert {index: node.operator.name for index, node in relations.launched_by.items()} == {
        0: "aten::mm", 1: "c10d::allreduce_", 2: "aten::relu",
    }  # fmt: skip
    assert "aten::addmm_inside" not in [node.operator.name for node in relations.nodes]
    assert [(step.number, step.begin_ns - WALL, step.end_ns - WALL) for step in relations.steps] == [
        (2, 11_000, 38_000),
        (3, 41_000, 60_000),
    ]


def test_kernels_have_their_step_shapes_and_figures_that_no_one_knows():
    rows = table(STEPS, "kernel_details.csv")
    assert [(row["Step Id"], row["Name"], row["Stream ID"]) for row in rows] == [
        (2, "aten::mm", 0), (2, "hcom_allReduce__731_4_1", 3), (3, "aten::relu", 0),
    ]  # fmt: skip
    assert [row["Input Shapes"] for row in rows] == ["4,8;8,4", "N/A", "4,4"]
    assert {row["aicore_time(us)"] for row in rows} == {row["cube_utilization(%)"] for row in rows} == {"N/A"}


def test_operators_on_the_host_with_the_kernels_below_them():
    rows = {row["Name"]: row for row in table(STEPS, "operator_details.csv")}
    assert list(rows) == ["aten::matmul", "aten::mm", "c10d::allreduce_", "aten::relu"]
    matmul = rows["aten::matmul"]
    assert (matmul["Host Self Duration(us)"], matmul["Host Total Duration(us)"]) == (3.5, 13)
    assert (matmul["Device Self Duration(us)"], matmul["Device Total Duration(us)"]) == (0, 8)
    assert matmul["Call Stack"] == "a.py(3): f;\r\na.py(9): <module>"
    assert rows["aten::relu"]["Device Self Duration(us)"] == 4
    assert rows["aten::relu"]["Device Self Duration With AICore(us)"] == 0


def test_the_times_of_steps():
    first, second = table(STEPS, "step_trace_time.csv")
    assert (first["Computing"], first["Communication"], first["Overlapped"]) == (8, 10, 4)
    assert (first["Communication(Not Overlapped)"], first["Free"], first["Stage"]) == (6, 16, 30)
    assert (first["Bubble"], first["Preparing"]) == (0, 6)
    assert (second["Device_id"], second["Step"], second["Computing"], second["Preparing"]) == (0, 3, 4, 2)


def test_the_types_of_operators():
    rows = table(STEPS, "op_statistic.csv")
    assert [(row["OP Type"], row["Core Type"], row["Count"], row["Total Time(us)"]) for row in rows] == [
        ("Mm", "AI_CORE", 1, "8.000"), ("Relu", "AI_VECTOR_CORE", 1, "4.000"),
    ]  # fmt: skip
    assert sum(row["Ratio(%)"] for row in rows) == pytest.approx(100)


def test_memory_with_the_operator_that_took_it():
    given = capture(
        [
            record("allocate", "", 10_800, 10_800, address=512, bytes=2**20),
            record("free", "", 30_000, 30_000, address=512, bytes=2**20),
            record("free", "", 31_000, 31_000, address=1024, bytes=2**20),
        ],
        STEPS.operators,
        allocated={0: 3 * 2**20},
    )
    (row,) = table(given, "operator_memory.csv")
    assert (row["Name"], row["Size(KB)"], row["Duration(us)"]) == ("aten::mm", 1024, "19.200")
    assert (row["Allocation Total Allocated(MB)"], row["Release Total Allocated(MB)"]) == (4, 3)
    assert row["Allocation Total Reserved(MB)"] == ""
    totals = [row["Total Allocated(MB)"] for row in table(given, "memory_record.csv") if row["Component"] == "PTA"]
    assert totals == [4, 3, 2]


def test_the_timeline_has_hosts_streams_and_flows():
    found = list(events(STEPS, relate(STEPS)))
    names = {event["args"]["name"] for event in found if event["name"] == "process_name"}
    assert names == {"Python", "Ascend Hardware", "Overlap Analysis"}
    clocks = {e["args"].get("clock") for e in found if e.get("args", {}).get("name") == "Ascend Hardware"}
    assert clocks == {CHROME_FRAME["otherData"]["clock"]}
    flows = [event for event in found if event.get("cat") == "async_npu"]
    assert len(flows) == 6
    assert {event["ph"] for event in flows} == {"s", "f"}
    spans = {event["name"]: event for event in found if event["ph"] == "X"}
    assert spans["aten::matmul"]["args"]["Input Dims"] == "4,8;8,4"
    assert spans["ProfilerStep#2"]["ts"] == "1000000000005.000"


def test_acts_that_overlap_on_a_stream_are_on_different_tracks():
    given = capture([record("operator", "a", 0, 10), record("operator", "b", 5, 20), record("operator", "c", 10, 30)])
    tracks = {event["name"]: event["tid"] for event in events(given, relate(given)) if event.get("cat") == "npu"}
    assert tracks["a"] == tracks["c"] != tracks["b"]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9), st.booleans()), min_size=1, max_size=12))
def test_overlaps_count_each_moment_once(acts):
    given = capture(
        record("collective" if talks else "operator", "x", begin, begin + length) for begin, length, talks in acts
    )
    found = {
        kind: {at - WALL for span in spans for at in range(span.begin, span.end)}
        for kind, spans in overlaps(given)[0].items()
    }
    at = {True: set(), False: set()}
    for begin, length, talks in acts:
        at[talks] |= set(range(begin, begin + length))
    busy = at[True] | at[False]
    assert found == {
        COMPUTING: at[False], COMMUNICATION: at[True], NOT_OVERLAPPED: at[True] - at[False],
        FREE: set(range(min(busy), max(busy))) - busy,
    }  # fmt: skip


def test_a_launched_kernel_belongs_to_where_it_was_queued():
    given = capture(
        [
            record("launch", "k", 11_000, 11_000, stream=5),
            record("kernel", "k", 50_000, 60_000, stream=5, thread=99),
            record("kernel", "k", 70_000, 71_000, stream=5, thread=99),
        ],
        [host("ProfilerStep#0", 0, 30_000), host("my::op", 10_000, 12_000)],
    )
    relations = relate(given)
    assert {index: node.operator.name for index, node in relations.launched_by.items()} == {1: "my::op"}
    assert [(step.begin_ns - WALL, step.end_ns - WALL) for step in relations.steps] == [(50_000, 60_000)]


def test_levels_and_activities_decide_about_files():
    def names(**options):
        given = capture(STEPS.trace.records, STEPS.operators, Options(**options))
        return [each.name for each in tables(given, relate(given))]

    assert names() == ["operator_details.csv", "kernel_details.csv", "step_trace_time.csv", "task_time.csv"]
    assert names(host=False, level="Level2") == [
        "kernel_details.csv", "step_trace_time.csv", "task_time.csv", "op_statistic.csv",
    ]  # fmt: skip
    assert names(card=False) == names(level="Level_none") == ["operator_details.csv"]
    assert names(card=False, memory=True)[-2:] == ["operator_memory.csv", "memory_record.csv"]


@pytest.mark.parametrize(
    ("name", "kernel", "type_"),
    [
        ("hccl::_allgather_base", "hcom_allGather__731_0_1", "hcom_allGather_"),
        ("hccl::recv", "hcom_receive__731_0_1", "hcom_receive_"),
        ("hccl::broadcast", "hcom_broadcast__731_0_1", "hcom_broadcast_"),
    ],
)
def test_collectives_have_hccl_s_names(name, kernel, type_):
    given = record("collective", name, 0, 1, communicator="world", rank=0, ranks=2, sequence=0)
    assert (kernel_name(given), kernel_type(given)) == (kernel, type_)


def test_a_capture_comes_back_as_it_was_and_its_files_are_replaced(tmp_path):
    folder = tmp_path / "w_1_2_ascend_pt"
    (folder / "FRAMEWORK").mkdir(parents=True)
    save(STEPS, folder / "FRAMEWORK" / "toprope.json")
    assert load(folder / "FRAMEWORK" / "toprope.json") == STEPS
    assert profiles(tmp_path) == profiles(folder) == [folder]
    output = folder / "ASCEND_PROFILER_OUTPUT"
    output.mkdir()
    (output / "old.csv").touch()
    analyse(folder)
    assert not (output / "old.csv").exists()
    assert (output / "analyse.done").exists()
    assert isinstance(json.loads((output / "trace_view.json").read_text()), list)
    export_stacks(folder, tmp_path / "s.log", of_card=False)
    assert (tmp_path / "s.log").read_text() == "a.py(9): <module>;a.py(3): f 3\n"


def test_a_capture_of_another_version_is_refused(tmp_path):
    (tmp_path / "c.json").write_text('{"record_fields": []}')
    with pytest.raises(ValueError, match="not written by this version"):
        load(tmp_path / "c.json")


def test_nothing_recorded_is_an_empty_timeline(tmp_path):
    (tmp_path / "FRAMEWORK").mkdir()
    save(capture(options=Options(host=False)), tmp_path / "FRAMEWORK" / "toprope.json")
    analyse(tmp_path)
    assert sorted(path.name for path in (tmp_path / "ASCEND_PROFILER_OUTPUT").iterdir()) == [
        "analyse.done", "trace_view.json",
    ]  # fmt: skip
    assert json.loads((tmp_path / "ASCEND_PROFILER_OUTPUT" / "trace_view.json").read_text()) == []

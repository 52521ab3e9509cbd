"""`torch_npu.profiler`: schedules, arguments and warnings as the vendor's, and folders that its tools can read.

Holds src/toprope/compat/torch_npu/profiler and src/toprope/sim/profiler. The cases of the vendor's own tests
(Ascend/pytorch, test/profiler) are here in other words.
"""

import csv
import json
import subprocess
import sys
import textwrap
import time
from collections import Counter
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from device_stand_ins import environment, run, told
from toprope.cores import record

pytestmark = [pytest.mark.native, pytest.mark.process]

OUTPUT = "ASCEND_PROFILER_OUTPUT"


@pytest.fixture(scope="module")
def profiler():
    """The facade's profiler under its long name."""
    import toprope.compat.torch_npu.profiler as module

    return module


@pytest.fixture
def said(capsys):
    """The profiler's lines since the last call; never on stdout."""

    def lines():
        out, err = capsys.readouterr()
        assert out == ""
        return [line.partition("profiler.py: ")[2] for line in err.splitlines()]

    return lines


# --- schedules


@settings(max_examples=200)
@given(
    wait=st.integers(0, 3), warmup=st.integers(1, 3), active=st.integers(1, 3), repeat=st.integers(0, 3),
    skip_first=st.integers(0, 3), skip_first_wait=st.integers(0, 1),
)  # fmt: skip
def test_the_schedule_is_torch_s(profiler, **numbers):
    ours, torchs = profiler.schedule(**numbers), torch.profiler.schedule(**numbers)
    assert [ours(step).name for step in range(40)] == [torchs(step).name for step in range(40)]


def test_wrong_numbers_of_a_schedule_are_replaced(profiler, said):
    for wrong in (-1, 0.5, "1", None):
        schedule = profiler.schedule(wrong, wrong, wrong, wrong, wrong, 0.5)
        assert vars(schedule) == {
            "wait": 0, "active": 1, "warmup": 0, "repeat": 0, "skip_first": 0, "skip_first_wait": 0,
        }  # fmt: skip
        assert [line.partition(" ")[0] for line in said()] == [
            "wait", "active", "warmup", "repeat", "skip_first", "skip_first_wait", "the",
        ]  # fmt: skip
    assert profiler.schedule(wait=0, active=0, warmup=1)(11) is profiler.ProfilerAction.RECORD_AND_SAVE
    with pytest.raises(ValueError, match="at least 0, not -1"):
        profiler.schedule(wait=0, active=1, warmup=1)(-1)


CALLS = {
    "NONE NONE": "", "NONE WARMUP": "init warmup", "NONE RECORD": "init start", "NONE RECORD_AND_SAVE": "init start",
    "WARMUP NONE": "start stop finalize", "WARMUP WARMUP": "", "WARMUP RECORD": "start",
    "WARMUP RECORD_AND_SAVE": "start", "RECORD NONE": "stop finalize", "RECORD WARMUP": "stop finalize",
    "RECORD RECORD": "", "RECORD RECORD_AND_SAVE": "", "RECORD_AND_SAVE NONE": "stop finalize ready",
    "RECORD_AND_SAVE WARMUP": "stop finalize ready init warmup",
    "RECORD_AND_SAVE RECORD": "stop finalize ready init start",
    "RECORD_AND_SAVE RECORD_AND_SAVE": "stop finalize ready init start", "WARMUP None": "finalize delete_prof_dir",
    "RECORD None": "stop finalize ready", "RECORD_AND_SAVE None": "stop finalize ready", "NONE None": "",
}  # fmt: skip


@pytest.mark.parametrize("actions", CALLS)
def test_the_calls_between_two_actions(profiler, said, actions):
    from toprope.compat.torch_npu.profiler._actions import change_action

    calls = []

    class Interface:
        def __getattr__(self, name):
            return lambda: calls.append(name.removesuffix("_trace"))

    before, now = (getattr(profiler.ProfilerAction, name, None) for name in actions.split())
    change_action(Interface(), lambda: calls.append("ready"), before, now)
    assert " ".join(calls) == CALLS[actions]
    wrong = {"WARMUP NONE", "RECORD NONE", "RECORD WARMUP"}
    assert len(said()) == (actions in wrong or (now is None and actions != "NONE None"))


# --- arguments


def test_settings_are_checked(profiler, said):
    config = profiler._ExperimentalConfig
    assert vars(config())["_profiler_level"] == profiler.ProfilerLevel.Level0
    assert said() == []
    flags = (
        "l2_cache", "msprof_tx", "mstx", "data_simplification", "record_op_args", "op_attr", "sys_io",
        "sys_interconnection",
    )  # fmt: skip
    wrong = vars(config(**dict.fromkeys(flags, 1)))
    assert [line.partition(" is 1")[0] for line in said()] == list(flags)
    assert [wrong.get(f"_{name}", wrong.get(name)) for name in flags] == [
        name == "data_simplification" for name in flags
    ]
    for name, value, kept in [
        ("profiler_level", 999, "Level0"), ("profiler_level", [], "Level0"), ("export_type", "xml", ["text"]),
        ("export_type", "", ["text"]), ("export_type", 3, ["text"]), ("export_type", ["text", "csv"], ["text"]),
        ("gc_detect_threshold", -1.0, None), ("gc_detect_threshold", "1", None), ("host_sys", ["cpu", "x"], []),
        ("host_sys", "cpu", []), ("host_sys", [[]], []),
    ]:  # fmt: skip
        assert vars(config(**{name: value}))[f"_{name}"] == kept, name
        assert said()[0].startswith(name)
    assert config(aic_metrics=profiler.AiCMetrics.Memory)._aic_metrics == profiler.AiCMetrics.AiCoreNone
    assert config(profiler_level="Level1", aic_metrics="x")._aic_metrics == profiler.AiCMetrics.PipeUtilization
    assert config(profiler_level="Level_none")._mstx is True
    assert len(said()) == 3
    assert config(op_attr=True)._op_attr is False
    assert config(op_attr=True, export_type=["db", "text", "db"])._op_attr is True
    assert config(host_sys=["cpu", "cpu"])._host_sys == ["cpu"]
    assert len(said()) == 1
    with pytest.warns(UserWarning, match="its new name is mstx"):
        config(msprof_tx=True)


def test_domains_of_mstx(profiler, said):
    config = profiler._ExperimentalConfig
    for include, exclude, on, kept in [
        (["x"], ["y"], False, ([], [])), (1, 1, True, ([], [])), ([1], [1], True, ([], [])),
        (["x"], ["y"], True, (["x"], [])), (["x"], None, True, (["x"], [])), (None, ["y"], True, ([], ["y"])),
    ]:  # fmt: skip
        made = config(mstx=on, mstx_domain_include=include, mstx_domain_exclude=exclude)
        assert (made._mstx_domain_include, made._mstx_domain_exclude) == kept
    assert len(said()) == 7


def test_what_is_supported(profiler):
    assert profiler.supported_activities() == {profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.NPU}
    assert str(profiler.ProfilerActivity.NPU) == "ProfilerActivity.NPU"
    assert profiler.supported_profiler_level() == {"Level0", "Level1", "Level2", "Level_none"}
    assert len(profiler.supported_ai_core_metrics()) == 9
    assert profiler.supported_export_type() == {"db", "text"}


def test_wrong_arguments_are_replaced(profiler, said):
    flags = ("record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules")
    made = profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], schedule=3, on_trace_ready="x", experimental_config={},
        use_cuda=True, **dict.fromkeys(flags, 1),
    )  # fmt: skip
    assert [getattr(made.prof_if, name) for name in flags] == [False] * 5
    assert made.prof_if.activities == profiler.supported_activities()
    assert (made.on_trace_ready, made.record_steps) == (None, False)
    assert isinstance(made.prof_if.experimental_config, profiler._ExperimentalConfig)
    lines = said()
    assert len(lines) == 10
    assert "schedule is no function, and is left out." in lines
    profiler.profile(activities=[profiler.ProfilerActivity.CPU], experimental_config=profiler._ExperimentalConfig())
    assert said() == ["experimental_config has no effect without ProfilerActivity.NPU."]
    with pytest.raises(TypeError):
        profiler.profile([profiler.ProfilerActivity.CPU])


@pytest.mark.parametrize("variable", ["TORCH_NPU_WARNING_DISABLE", "RANK"])
def test_warnings_can_be_silent(profiler, said, monkeypatch, variable):
    monkeypatch.setenv(variable, "1")
    profiler.schedule(wait=-1, active=1)
    assert said() == []


def test_metadata(profiler, said):
    made = profiler._KinetoProfile()
    made.add_metadata("a", "text")
    made.add_metadata_json("b", "[1, 2]")
    assert said() == []
    made.add_metadata("a", "other")
    made.add_metadata("c", 3)
    made.add_metadata_json("c", "{")
    made.add_metadata_json("c", "1" * 5000)
    for number in range(1400):
        made.add_metadata(f"{number}", "")
    assert (made.metadata["a"], made.metadata["b"], "c" in made.metadata) == ("other", [1, 2], False)
    assert 1000 < len(made.metadata) < 1400
    assert any("too much metadata" in line for line in said())


@pytest.mark.parametrize("callback", [lambda: 3, lambda: "x" * 1025, lambda: 1 / 0, "no function"])
def test_an_id_that_cannot_be_used_is_replaced(profiler, said, callback):
    made = profiler._KinetoProfile(custom_trace_id_callback=callback)
    assert len(made.prof_if._new_trace_id()) == 32
    assert len(said()) == 1
    assert len(profiler._KinetoProfile().prof_if._new_trace_id()) == 32


def test_without_a_card_the_program_goes_on(profiler, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with profiler.profile(on_trace_ready=profiler.tensorboard_trace_handler(str(tmp_path))) as made:
        made.step()
    assert any(line.startswith("profile.start failed: there is no simulated card") for line in said())
    made.step()
    assert said() == ["the profiler is stopped; step() has no effect."]
    assert profiler.profile().export_chrome_trace(str(tmp_path / "t.json")) is None
    assert said() == ["there is no record to export."]
    with pytest.raises(NotImplementedError, match="export_memory_timeline is not simulated"):
        profiler.profile().export_memory_timeline("t.html")


# --- profiles of programs


PROGRAM = """
import gc, glob, os, threading
import toprope.compat
toprope.compat.install(simulated_card=True)
import torch, torch_npu, toprope.sim
from torch_npu import profiler as P

model = torch.nn.Sequential(torch.nn.Conv2d(3, 3, 3, padding=1), torch.nn.ReLU()).npu()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train():
    loss = model(torch.rand(2, 3, 8, 8).npu()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

def handler(name, **more):
    return P.tensorboard_trace_handler("out", worker_name=name, **more)

level1 = P._ExperimentalConfig(profiler_level=P.ProfilerLevel.Level1)
with P.profile(schedule=P.schedule(wait=1, warmup=1, active=2, repeat=1), on_trace_ready=handler("loop"),
               record_shapes=True, profile_memory=True, with_stack=True, with_flops=True, experimental_config=level1,
               custom_trace_id_callback=lambda: "mine") as p:
    for _ in range(5):
        train()
        p.add_metadata("key", "value")
        p.step()
assert p.get_trace_id() == "mine"

def child():
    torch.npu.set_device(1)
    P.profile.enable_profiler_in_child_thread()
    torch.ones(8, 8, device="npu:1") @ torch.ones(8, 8, device="npu:1")
    P.profile.disable_profiler_in_child_thread()

with P.profile(on_trace_ready=handler("cards")) as p:
    thread = threading.Thread(target=child)
    thread.start()
    train()
    toprope.sim.launch("vector", vector=8, name="Mine", stream=torch.npu.Stream())
    thread.join()

with P.profile(activities=[P.ProfilerActivity.CPU], on_trace_ready=handler("host")):
    train()
with P.profile(activities=[P.ProfilerActivity.NPU], on_trace_ready=handler("card")):
    train()

try:
    with P.profile(schedule=P.schedule(wait=0, warmup=1, active=1, repeat=0), on_trace_ready=handler("left")) as p:
        for number in range(9):
            train()
            p.step()
            if number == 4:
                raise KeyError("left")
except KeyError:
    pass

with P.profile(schedule=P.schedule(wait=0, warmup=5, active=1), on_trace_ready=handler("warm")):
    train()

p = P.profile(on_trace_ready=handler("later", analyse_flag=False))
p.start()
train()
p.stop()

os.environ["ASCEND_WORK_PATH"] = "work"
p = P._KinetoProfile(with_stack=True)
p.start()
train()
p.stop()
p.export_chrome_trace("work/trace.json")
p.export_stacks("work/stacks.txt")
del os.environ["ASCEND_WORK_PATH"]
P.profiler.analyse("work/profiling_data", export_type="text")

with P.profile() as p:
    train()
p.export_chrome_trace("only.json")
only = len(glob.glob("export_only_prof_dir/*_ascend_pt"))
p.export_stacks("only.log")
del p
gc.collect()

open("file", "w").close()
bad = P.tensorboard_trace_handler("file")
with P.profile(on_trace_ready=P.tensorboard_trace_handler("file/inside", worker_name=3)) as p:
    train()
with P.profile(on_trace_ready=handler("db"), experimental_config=P._ExperimentalConfig(export_type="db")):
    train()
def broken(profile):
    raise RuntimeError("the handler's own")
with P.profile(on_trace_ready=broken, experimental_config=P._ExperimentalConfig(l2_cache=True, sys_io=True)):
    train()
with toprope.sim.trace():
    with P.profile(on_trace_ready=handler("traced")):
        train()
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as torchs:
    with P.profile(on_trace_ready=handler("nested")):
        train()
def fail():
    raise ValueError("a kernel's own")
try:
    with P.profile(on_trace_ready=handler("failed")):
        train()
        toprope.sim.launch("vector", body=fail)
except RuntimeError as error:
    failure = str(error)
p = P.profile(on_trace_ready=handler("exit"))
p.start()
train()
tell(only, bad, os.path.exists("export_only_prof_dir"), len(torchs.key_averages()), failure)
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Folder of a program that profiled itself in many ways, its values, and its lines on stderr."""
    folder = tmp_path_factory.mktemp("profiles")
    begin = f"import json, os\nos.chdir({str(folder)!r})\n"
    begin += "def tell(*values):\n    print('told:' + json.dumps(values))\n"
    variables = {"TOPROPE_SIM": "910B3x2", "TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}
    done = run(begin + PROGRAM, **variables)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    return folder, json.loads(line.removeprefix("told:")), done.stderr.splitlines()


def the_folder(program, name):
    found = sorted((program[0] / "out").glob(f"{name}_*_ascend_pt"))
    assert found, name
    return found[-1]


def rows(folder, name):
    with (folder / OUTPUT / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def files(folder):
    return {path.name for path in (folder / OUTPUT).iterdir()}


ALWAYS = {"analyse.done", "trace_view.json"}
OF_CARD = {"kernel_details.csv", "step_trace_time.csv", "task_time.csv"}


def test_a_training_loop_with_a_schedule(program):
    folder = the_folder(program, "loop")
    assert files(folder) == ALWAYS | OF_CARD | {
        "operator_details.csv", "op_statistic.csv", "operator_memory.csv", "memory_record.csv",
    }  # fmt: skip
    assert [row["Step"] for row in rows(folder, "step_trace_time.csv")] == ["2", "3"]
    kernels = rows(folder, "kernel_details.csv")
    assert Counter(row["Name"] for row in kernels if row["Step Id"] == "2") == Counter(
        row["Name"] for row in kernels if row["Step Id"] == "3"
    )
    relu = next(row for row in kernels if row["Name"] == "aten::relu")
    assert (relu["Type"], relu["Accelerator Core"], relu["Input Shapes"]) == ("Relu", "AI_VECTOR_CORE", "2,3,8,8")
    assert (relu["Stream ID"], relu["Block Num"], relu["aiv_vec_ratio"]) == ("0", "40", "N/A")
    assert float(relu["Duration(us)"]) > 0
    ends = [float(relu[f"Card Duration Estimate {end}(us)"]) for end in ("Low", "High")]
    assert 0 < ends[0] < ends[1] < 100
    assert abs(float(relu["Start Time(us)"]) / 1e6 - time.time()) < 3600
    operators = rows(folder, "operator_details.csv")
    assert {row["Name"] for row in operators} >= {"aten::conv2d", "aten::relu", "aten::threshold_backward"}
    assert all("ProfilerStep" not in row["Name"] for row in operators)
    assert next(row for row in operators if row["Name"] == "aten::relu")["Call Stack"].count(";\r\n") > 2
    launched = sum(float(row["Device Self Duration(us)"]) for row in operators)
    assert launched == pytest.approx(sum(float(row["Duration(us)"]) for row in kernels))
    blocks = rows(folder, "operator_memory.csv")
    assert {row["Device Type"] for row in blocks} == {"NPU:0"}
    assert any(row["Name"].startswith("aten::") and row["Duration(us)"] for row in blocks)
    assert all(float(row["Total Allocated(MB)"]) >= 0 for row in rows(folder, "memory_record.csv"))


def test_the_folder_says_whose_times_it_has(program):
    folder = the_folder(program, "loop")
    metadata = json.loads((folder / "profiler_metadata.json").read_text())
    assert metadata["toprope"] == {
        "card": "simulated Ascend 910B3", "times": "of the host's CPU, measured; not the card's",
    }  # fmt: skip
    assert (metadata["key"], metadata["trace_id"]) == ("value", "mine")
    assert "HCCL_ALGO" in metadata["ENV_VARIABLES"]
    info = json.loads((folder / "profiler_info.json").read_text())
    assert info["config"]["common_config"]["schedule"]["active"] == 2
    assert info["config"]["common_config"]["activities"] == ["ProfilerActivity.CPU", "ProfilerActivity.NPU"]
    assert info["config"]["experimental_config"]["_profiler_level"] == "Level1"
    assert info["torch_npu_version"] == torch.__version__.partition("+")[0]
    lines = [line for line in program[2] if "every time in its files was measured on this machine's CPU" in line]
    assert len(lines) == 1


def test_the_timeline_opens_elsewhere(program):
    events = json.loads((the_folder(program, "loop") / OUTPUT / "trace_view.json").read_text())
    kinds = Counter((event["ph"], event.get("cat")) for event in events)
    assert kinds["s", "async_npu"] == kinds["f", "async_npu"] > 10
    assert kinds["s", "fwdbwd"] == kinds["f", "fwdbwd"] > 0
    assert kinds["X", "python_function"] > 10
    spans = [event for event in events if event["ph"] == "X"]
    assert all(float(event["ts"]) > 0 <= event["dur"] for event in spans)
    names = {event["name"] for event in spans}
    assert names >= {"ProfilerStep#2", "aten::conv2d", "aten::relu", "Computing", "Free", "MEMCPY_ASYNC"}
    assert any("Input Dims" in event["args"] and "Input type" in event["args"] for event in spans)
    on_card = sorted((float(event["ts"]), event["dur"], event["tid"]) for event in spans if event["cat"] == "npu")
    assert {tid for *_, tid in on_card} == {0}
    assert all(begin + length <= other + 1 for (begin, length, _), (other, *_) in pairwise(on_card))


def test_a_folder_written_here_is_one_that_cores_check_reads(program):
    for name in ("loop", "cards", "card"):
        schedule = record.read(the_folder(program, name), chip="910B3")
        kernels = rows(the_folder(program, name), "kernel_details.csv")
        assert sorted(op.name for *_, op in schedule.ops()) == sorted(row["Name"] for row in kernels)
        assert len(schedule.cards) == len({row["Device_id"] for row in kernels})


def test_two_cards_a_thread_and_a_kernel_of_the_program(program):
    folder = the_folder(program, "cards")
    assert files(folder) == ALWAYS | OF_CARD | {"operator_details.csv"}
    kernels = rows(folder, "kernel_details.csv")
    assert Counter(row["Device_id"] for row in kernels if row["Name"] == "aten::mm") == {"1": 1}
    assert Counter(row["Name"] for row in kernels if row["Stream ID"] != "0") == {"Mine": 1}
    assert [row["Device_id"] for row in rows(folder, "step_trace_time.csv")] == ["0", "1"]
    assert "aten::mm" in {row["Name"] for row in rows(folder, "operator_details.csv")}
    labels = {
        event["args"]["labels"]
        for event in json.loads((folder / OUTPUT / "trace_view.json").read_text())
        if event["name"] == "process_labels"
    }
    assert labels == {"CPU", "NPU 0", "NPU 1"}


def test_one_side_alone(program):
    host, card = the_folder(program, "host"), the_folder(program, "card")
    assert files(host) == ALWAYS | {"operator_details.csv"}
    assert "async_npu" not in (host / OUTPUT / "trace_view.json").read_text()
    assert files(card) == ALWAYS | OF_CARD
    assert "cpu_op" not in (card / OUTPUT / "trace_view.json").read_text()


def test_a_block_that_is_left_by_an_exception_keeps_what_was_complete(program):
    found = sorted((program[0] / "out").glob("left_*_ascend_pt"))
    assert len(found) == 3  # two complete cycles, and the one that the exception ended
    assert [[row["Step"] for row in rows(folder, "step_trace_time.csv")] for folder in found[:2]] == [["1"], ["3"]]
    assert any("stopped in a RECORD_AND_SAVE step" in line for line in program[2])


def test_a_profile_that_ends_in_its_warmup_leaves_no_folder(program):
    assert not list((program[0] / "out").glob("warm_*"))
    assert any("stopped in a WARMUP step" in line for line in program[2])


def test_files_that_are_written_later(program, profiler, said):
    later = the_folder(program, "later")
    assert not (later / OUTPUT).exists()
    profiler.profiler.analyse(str(later.parent.parent / "work"), max_process_number=0)
    assert len(said()) == 2
    for wrong in ("xml", [], 3, ["text", {}]):
        profiler.profiler.analyse(str(later), export_type=wrong)
        assert len(said()) == 1
        assert files(later) == ALWAYS | OF_CARD | {"operator_details.csv"}
    profiler.profiler.analyse(str(later / "no such folder"))
    assert said()[0].startswith("analyse failed: ")


def test_exports(program):
    folder = program[0]
    (work,) = (folder / "work" / "profiling_data").iterdir()
    assert "kernel_details.csv" in files(work)
    assert json.loads((folder / "work" / "trace.json").read_text())
    stacks = (folder / "work" / "stacks.log").read_text().splitlines()
    assert stacks
    assert all(int(line.rpartition(" ")[2]) > 0 for line in stacks)
    assert json.loads((folder / "only.json").read_text())
    assert not (folder / "only.log").exists()
    only, _, left, *_ = program[1]
    assert (only, left) == (1, False)
    assert any("export_stacks() needs with_stack=True" in line for line in program[2])


def test_a_folder_that_cannot_be_written_ends_no_program(program):
    assert program[1][1] is None  # the handler of a file
    lines = "\n".join(program[2])
    assert "tensorboard_trace_handler failed: " in lines
    assert "is a file, and no folder" in lines
    assert "profile.start failed: [Errno 20] Not a directory" in lines
    assert "worker_name is 3; the machine's name is taken." in lines


def test_what_is_not_simulated_says_so(program):
    lines = "\n".join(program[2])
    assert "the database of export_type 'db' is not simulated" in lines
    assert not (the_folder(program, "db") / OUTPUT).exists()
    assert "the simulated card has nothing to record for l2_cache, sys_io." in lines
    assert "profile.stop failed: the handler's own" in lines
    assert "profile.start failed: a trace is already being written in this process." in lines


def test_next_to_torch_s_own_profiler_it_records_nothing_and_harms_nothing(program):
    assert not list((program[0] / "out").glob("nested_*"))
    assert program[1][3] > 10
    assert any("profile.start failed: torch's own profiler is running" in line for line in program[2])


def test_the_failure_of_a_card_reaches_the_program(program):
    assert "error code is 507035" in program[1][4]
    assert "aten::relu" in {row["Name"] for row in rows(the_folder(program, "failed"), "kernel_details.csv")}


def test_a_profiler_that_is_never_stopped_is_stopped_at_the_end(program):
    assert "kernel_details.csv" in files(the_folder(program, "exit"))


def test_names_that_are_missing_say_so(profiler):
    with pytest.raises(AttributeError, match=r"torch_npu.profiler.dynamic_profile: the real torch_npu has it"):
        _ = profiler.dynamic_profile
    found = told(
        """
        import toprope.compat
        toprope.compat.install(simulated_card=True)
        try:
            import torch_npu.profiler.dynamic_profile
        except ImportError as error:
            tell(str(error))
        """,
        TOPROPE_SIM="910B3", TORCH_DEVICE_BACKEND_AUTOLOAD="1",
    )  # fmt: skip
    assert "toprope does not simulate it" in found


RUN = """
    import torch, torch_npu
    with torch_npu.profiler.profile(on_trace_ready=torch_npu.profiler.tensorboard_trace_handler("out")) as p:
        torch.ones(8, 8, device="npu").mm(torch.ones(8, 8, device="npu"))
"""


@pytest.mark.slow
def test_in_a_traced_run(tmp_path):
    (tmp_path / "program.py").write_text(textwrap.dedent(RUN))
    command = [sys.executable, "-m", "toprope", "run", "--chip", "910B3", "--trace", "t.json", "program.py"]
    kept = {name: value for name, value in environment().items() if not name.startswith(("TORCH", "TOPROPE_RUN"))}
    done = subprocess.run(command, cwd=tmp_path, env=kept, capture_output=True, text=True, timeout=280)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "note          torch_npu.profiler: every time in its files was measured on this machine's CPU" in done.stderr
    (folder,) = (tmp_path / "out").iterdir()
    kernels = [row["Name"] for row in rows(folder, "kernel_details.csv")]
    traced = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert kernels == [event["name"] for event in traced if event.get("cat") == "operator"]
    check = [sys.executable, "-m", "toprope", "cores", "check", str(folder), "--chip", "910B3"]
    assert "safe" in subprocess.run(check, capture_output=True, text=True, timeout=280).stdout


RANKS = """
    import os, torch, torch_npu
    import torch.distributed as dist
    rank = int(os.environ["RANK"])
    torch.npu.set_device(rank)
    dist.init_process_group("hccl")
    with torch_npu.profiler.profile(on_trace_ready=torch_npu.profiler.tensorboard_trace_handler("out")) as p:
        x = torch.ones(4, device="npu")
        dist.all_reduce(x)
        dist.all_reduce(x)
        if rank:
            dist.recv(x, 0)
        else:
            dist.send(x, 1)
        torch.npu.synchronize()
    dist.destroy_process_group()
"""


@pytest.mark.slow
def test_ranks_of_a_group(tmp_path):
    (tmp_path / "program.py").write_text(textwrap.dedent(RANKS))
    command = [sys.executable, "-m", "toprope", "run", "--chip", "910B3", "--count", "2", sys.executable, "-m"]
    command += ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "program.py"]
    kept = {name: value for name, value in environment().items() if not name.startswith(("TORCH", "TOPROPE_RUN"))}
    done = subprocess.run(command, cwd=tmp_path, env=kept, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    folders = sorted((tmp_path / "out").iterdir(), key=lambda path: next(path.glob("profiler_info_*.json")).name)
    infos = [next(path.glob("profiler_info*")).name for path in folders]
    assert infos == ["profiler_info_0.json", "profiler_info_1.json"]
    kernels = [[row["Name"] for row in rows(path, "kernel_details.csv")] for path in folders]
    names = [[name for name in each if name.startswith("hcom")] for each in kernels]
    assert [len(each) for each in names] == [3, 3]
    assert names[0][:2] == names[1][:2]
    assert names[0][0].startswith("hcom_allReduce__")
    assert [each[2].partition("__")[0] for each in names] == ["hcom_send", "hcom_receive"]
    (groups,) = [json.loads((folders[1] / "profiler_metadata.json").read_text())["parallel_group_info"].values()]
    assert [(each["group_name"], each["group_rank"], each["global_ranks"]) for each in groups] == [
        ("default_group", 1, [0, 1]),
    ]  # fmt: skip
    schedule = record.read(tmp_path / "out", chip="910B3")
    assert [(len(each.cards), each.as_seen) for each in schedule.communicators] == [(2, True)]

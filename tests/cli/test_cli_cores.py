"""`toprope cores`: each exit status, each form of the answer, bad input as one error, and the check of a run.

Holds `cli.cores`, `cli.cores_explain`, `cli.output.cores_*` and `cli.reports.run_cores`; the proofs are held in
tests/cores.
"""

import importlib
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from toprope.cli import main
from toprope.cli.output.cores_text import exit_status, report
from toprope.cores import Card, Communicator, Discipline, Op, Plan, Program, Stream, record
from toprope.cores.check import Result, Verdict, check
from toprope.cores.diagnosis import of_code, seen_in, symptoms
from toprope.cores.findings import Finding, Level
from toprope.cores.model import Collective
from toprope.terminal import render

pytestmark = [pytest.mark.native, pytest.mark.process]

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "cores"
FIGURE = str(EXAMPLES / "figure.json")

Run = tuple[int, str, str]


@pytest.fixture
def toprope(capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*words: str) -> Run:
        status = main(["cores", *words])
        seen = capsys.readouterr()
        assert "Traceback" not in seen.err
        return status, seen.out, seen.err

    return call


def write(path: Path, data: Any) -> str:
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return str(path)


def one_card(**changes: Any) -> dict[str, Any]:
    op = {"name": "NonZero", "vector": 8} | changes
    return {"cards": [{"name": "0", "cube": 24, "vector": 48}], "streams": [{"name": "s", "card": "0", "ops": [op]}]}


def test_the_deadlock_of_the_mission_is_described_as_it_is(toprope: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    status, out, err = toprope("check", "examples/cores/figure.json")
    assert (status, err) == (1, "")
    # the output that the docs show
    page = (ROOT / "docs" / "cores.md").read_text()
    shown = page.partition("$ toprope cores check examples/cores/figure.json\n")[2].partition("\n...\n")[0]
    assert out.startswith(shown)
    for row in (
        ("ReduceScatter", "holds 16 of 16", "waits for its peer on card 1"),
        ("NonZero", "holds 32 of 48", "waits for 16 cores"),
        ("DispatchCombine", "holds 0 of 24", "waits for 24 cores"),
        ("NonZero", "holds 24 of 48", "waits for 24 cores"),
    ):
        assert any(all(part in line for part in row) for line in out.splitlines())
    assert "\n  torch.npu.set_stream_limit(stream, vector_num=8)\n" in out
    assert "\x1b" not in out


def test_safe_is_said_with_its_proof(toprope: Any) -> None:
    status, out, err = toprope("check", str(EXAMPLES / "figure-limited-8.json"))
    assert (status, err) == (0, "")
    assert out.startswith(
        "safe under every dispatch order: 2 cards, 3 streams each, 48 vector cores a card\nproven by: "
    )
    assert "16 + 24 + 8 = 48" in out
    assert "\nwarning  two-aiv-communicators" in out
    status, out, _ = toprope("check", str(EXAMPLES / "figure-limited-8.json"), "--strict")
    assert status == 1  # it has warnings


def test_the_discipline_counts(toprope: Any) -> None:
    limited = str(EXAMPLES / "figure-limited-32.json")
    assert toprope("check", limited)[0] == 1
    for discipline, how in (("D0b", "in one go (D0b)"), ("D1", "all of its cores or none, in order (D1)")):
        status, out, _ = toprope("check", limited, "--discipline", discipline)
        assert status == 0
        assert how in out.splitlines()[0]
    assert toprope("check", limited, "--discipline", "D9")[0] == 2


def test_a_deadlock_that_no_number_of_cores_prevents(toprope: Any) -> None:
    status, out, _ = toprope("check", str(EXAMPLES / "circle.json"))
    assert status == 1
    assert "no limit of another operator helps" in out
    assert "set_stream_limit" not in out
    assert "\nerror    cyclic-wait" in out
    assert "circle.json: streams[0].ops[" in out


def test_json_says_the_same(toprope: Any) -> None:
    status, out, _ = toprope("check", FIGURE, "--json")
    told = json.loads(out)
    assert status == told["exit_status"] == 1
    assert (told["verdict"], told["discipline"]) == ("deadlock", "D0")
    assert told["weaker"] == {"D0b": "deadlock", "D1": "deadlock", "D2": "safe"}
    holds = {each["op"]: (each["holds"], each["wants"], each["lacks"]) for each in told["witness"]["waits"]}
    assert holds["NonZero(0)"] == ([0, 32], [0, 48], [0, 16])
    assert holds["DispatchCombine(0)"] == ([0, 0], [0, 24], [0, 24])
    assert len(told["witness"]["cycle"]) == 6
    assert told["fix"]["op"] == "NonZero"
    assert (told["fix"]["vector"], told["fix"]["exact_vector"]) == (8, 9)
    assert [each["rule"] for each in told["findings"]] == ["two-aiv-communicators", "below-hccl-minimum"]
    assert told["findings"][0]["places"] == [f"{FIGURE}: streams[0].ops[0]", f"{FIGURE}: streams[1].ops[0]"]


def check_sarif(log: Any) -> list[Any]:
    """Check the requirements of SARIF 2.1.0 for the objects that are used."""
    assert log["version"] == "2.1.0"
    assert log["$schema"].startswith("https://")
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "toprope"
    rules = [rule["id"] for rule in driver["rules"]]
    assert len(set(rules)) == len(rules)
    for rule in driver["rules"]:
        assert rule["shortDescription"]["text"].endswith(".")
        assert rule["defaultConfiguration"]["level"] in ("none", "note", "warning", "error")
    for each in run["results"]:
        assert each["message"]["text"]
        assert each["level"] in ("none", "note", "warning", "error")
        assert rules[each["ruleIndex"]] == each["ruleId"]
        assert each["locations"]
        for location in each["locations"]:
            assert location["physicalLocation"]["artifactLocation"]["uri"]
            for logical in location.get("logicalLocations", []):
                assert logical["fullyQualifiedName"]
    return list(run["results"])


def test_sarif(toprope: Any, tmp_path: Path) -> None:
    status, out, _ = toprope("check", FIGURE, "--sarif", "-")
    results = check_sarif(json.loads(out))
    assert status == 1
    assert [each["ruleId"] for each in results] == ["deadlock", "two-aiv-communicators", "below-hccl-minimum"]
    assert "NonZero(0) -> ReduceScatter(0)" in results[0]["message"]["text"]
    place = results[0]["locations"][0]
    assert place["physicalLocation"]["artifactLocation"]["uri"] == FIGURE
    assert place["logicalLocations"] == [{"name": "NonZero(0)", "fullyQualifiedName": "streams[2].ops[0]"}]
    safe = write(tmp_path / "safe.json", one_card())
    status, out, _ = toprope("check", safe, "--sarif", str(tmp_path / "out.sarif"))
    assert (status, out[:4]) == (0, "safe")
    assert check_sarif(json.loads((tmp_path / "out.sarif").read_text())) == []
    assert toprope("check", FIGURE, "--sarif", "-", "--json")[0] == 2
    status, _, err = toprope("check", safe, "--sarif", str(tmp_path / "no" / "out.sarif"))
    assert status == 2
    assert "cannot be written" in err


def test_html_has_picture_and_report(toprope: Any, tmp_path: Path) -> None:
    for name in ("figure", "figure-limited-8"):
        file = tmp_path / f"{name}.html"
        toprope("check", str(EXAMPLES / f"{name}.json"), "--html", str(file))
        text = file.read_text()
        assert text.startswith("<!DOCTYPE html>")
        assert ("deadlock possible" in text) == (name == "figure")
        assert text.count("<svg ") == 1
        assert ('class="arrow"' in text) == (name == "figure")


def test_unknown_ends_with_3(toprope: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    program = record.read(FIGURE)
    unknown = Result(Verdict.UNKNOWN, Discipline.D0, "S1 does not hold; pip install ortools")
    monkeypatch.setattr(importlib.import_module("toprope.cores.check"), "check", lambda *_, **__: unknown)
    status, out, _ = toprope("check", FIGURE)
    assert status == 3
    assert out.startswith("not decided: 2 cards")
    assert "pip install ortools" in out
    _, out, _ = toprope("check", FIGURE, "--sarif", "-")
    assert [each["ruleId"] for each in check_sarif(json.loads(out))] == ["undecided"]
    error = Finding(Level.ERROR, "desync", "x", ((0, 0),))
    assert exit_status(Result(Verdict.UNKNOWN, Discipline.D0, "", findings=(error,))) == 1
    assert "\x1b[" in render(report(program, unknown), colour=True)


def test_time_that_runs_out_is_no_guess(toprope: Any, tmp_path: Path) -> None:
    """No time at all: what the sums cannot prove is not decided."""
    status, out, _ = toprope("check", str(EXAMPLES / "pairwise-3-cards.json"), "--seconds", "0")
    assert status in (1, 3)
    assert out.startswith("not decided" if status == 3 else "deadlock possible")


def test_a_witness_of_many_cards_is_described_in_few_lines() -> None:
    cards = tuple(Card(str(number), 24, 48) for number in range(8))
    groups = tuple(Communicator(name, tuple(card.name for card in cards), "aiv") for name in ("x", "y"))
    streams = tuple(
        Stream(name, card.name, (Op(name, vector=32, collective=Collective(name, 0)),))
        for card in cards
        for name in ("x", "y")
    )
    program = Program(cards, streams, groups)
    result = check(program)
    assert result.verdict is Verdict.DEADLOCK
    text = render(report(program, result))
    assert text.startswith("deadlock possible even under D2 on 8 cards, 2 streams each, 48 vector cores a card\n")
    assert " -> " in text
    assert len(text.splitlines()) < 30


BAD: dict[str, tuple[Any, str]] = {
    "unknown-device": (
        {**one_card(), "streams": [{"name": "s", "card": "7", "ops": []}]}, "on card '7', which is not there",
    ),
    "unknown-chip": ({"cards": [{"name": "0", "chip": "911X"}], "streams": []}, "there is no chip '911X'"),
    "negative": (one_card(vector=-1), "fewer than 0 cores"),
    "too-many": (one_card(vector=49), "more cores than card 0 has"),
    "event": (one_card(waits=["e"]), "waits for event e, which nobody records"),
    "truncated-json": (json.dumps(one_card())[:-20], "cut short"),
    "truncated-trace": ('{"displayTimeUnit": "ms", "traceEvents": [\n{"ph": "M", "pi', "cut short"),
    "not-text": ("[1, 2", "cut short"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_error_that_names_the_record(name: str, toprope: Any, tmp_path: Path) -> None:
    data, what = BAD[name]
    file = write(tmp_path / "bad.json", data)
    for command in (["check"], ["plan"], ["show", "--svg", str(tmp_path / "x.svg")]):
        status, out, err = toprope(*command, file)
        assert (status, out) == (2, "")
        assert what in err
        assert "bad.json" in err
        assert err.count("toprope: ") == 1
    assert not (tmp_path / "x.svg").exists()


def test_a_missing_rank_was_an_error_of_the_reader_and_no_finding(toprope: Any, tmp_path: Path) -> None:
    data = {
        "cards": [{"name": "0", "chip": "910B1"}, {"name": "1", "chip": "910B1"}],
        "communicators": [{"name": "dp", "cards": ["0", "1"]}],
        "streams": [{"name": "s", "card": "0", "ops": [{"name": "AllReduce", "vector": 8, "collective": "dp"}]}],
    }
    file, sarif = write(tmp_path / "rank.json", data), tmp_path / "out.sarif"
    status, out, err = toprope("check", file, "--sarif", str(sarif))
    assert (status, err) == (1, "")
    assert "error    missing-rank" in out
    rules = [each["ruleId"] for each in json.loads(sarif.read_text())["runs"][0]["results"]]
    assert rules == ["deadlock", "missing-rank"]
    status, _, err = toprope("plan", file)
    assert (status, "never finishes, which no limit can change" in err) == (2, True)


def test_folders_and_patterns_of_the_profiler_are_read(toprope: Any, tmp_path: Path) -> None:
    header = "Device_id,Name,Type,Accelerator Core,Start Time(us),Duration(us),Block Num,Mix Block Num"
    for rank in (0, 1):
        folder = tmp_path / f"host_{rank}_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
        folder.mkdir(parents=True)
        rows = f"{rank},hcom_allReduce__606_0_1,hcom_allReduce_,HCCL,1,2,0,0"
        if rank:  # level 0 of the profiler leaves out the streams; msprof's summary of the rank has them
            (folder / "kernel_details.csv").write_text(f"{header}\n{rows}\n")
            other = folder.parent / "PROF_1" / "mindstudio_profiler_output"
            other.mkdir(parents=True)
            (other / "op_summary_2026.csv").write_text(f"{header},Stream ID\n{rows},7\n")
        else:
            (folder / "kernel_details.csv").write_text(f"{header},Stream ID\n{rows},7\n")
        (folder / "trace_view.json").write_text('[{"ph": "X", "name": "Add"}]')
    status, out, err = toprope("check", str(tmp_path), "--chip", "910B3", "--json")
    assert (status, err) == (0, "")
    assert (json.loads(out)["cards"], json.loads(out)["findings"]) == (2, [])
    pattern = str(tmp_path / "host_1_ascend_pt" / "PROF_1" / "mindstudio_profiler_output" / "op_summary*.csv")
    status, out, _ = toprope("check", pattern, "--chip", "910B3")
    assert (status, "one-card-communicator" in out) == (1, True)
    for given in (pattern, pattern.replace("*", "_2026")):  # in SARIF the file itself is named, with the line
        _, out, _ = toprope("check", given, "--chip", "910B3", "--sarif", "-")
        places = [each["locations"][0]["physicalLocation"] for each in check_sarif(json.loads(out))]
        (place,) = [each for each in places if "region" in each]
        assert Path(place["artifactLocation"]["uri"]).name == "op_summary_2026.csv"
        assert place["region"] == {"startLine": 2}
    status, _, err = toprope("check", str(folder / "trace_view.json"), "--chip", "910B3")
    assert (status, "give kernel_details.csv" in err) == (2, True)
    (tmp_path / "empty").mkdir()
    assert "has no file of the profiler" in toprope("check", str(tmp_path / "empty"), "--chip", "910B3")[2]
    assert "no file matches" in toprope("check", str(tmp_path / "x*.csv"), "--chip", "910B3")[2]


def test_nothing_and_the_same_file_twice_were_called_safe(toprope: Any, tmp_path: Path) -> None:
    empty = write(tmp_path / "empty.json", {"cards": [], "streams": []})
    status, _, err = toprope("check", empty)
    assert (status, "there is nothing to check" in err) == (2, True)
    header = write(tmp_path / "head.csv", "Device_id,Name,Type,Accelerator Core,Start Time(us),Block Num,Stream ID\n")
    status, _, err = toprope("check", header, "--chip", "910B3")
    assert (status, "there is nothing to check" in err) == (2, True)
    status, _, err = toprope("check", FIGURE, FIGURE)
    assert (status, "a file is given twice" in err) == (2, True)


def test_an_operator_of_unknown_cores_was_taken_to_use_none(toprope: Any, tmp_path: Path) -> None:
    data = one_card(sync_all=True)
    data["streams"].append({"name": "t", "card": "0", "ops": [{"name": "Mystery"}]})
    file = write(tmp_path / "unknown.json", data)
    status, out, _ = toprope("check", file)
    assert (status, "these need all of their blocks at once" in out, "unknown-cores" in out) == (1, True, True)
    status, out, _ = toprope("check", file, "--assume", "one-block")
    assert (status, "if the operators below need one block at a time" in out) == (0, True)
    data["streams"][1]["ops"][0] |= {"cube": 0, "vector": 0}  # now it is said to use none
    assert toprope("check", write(tmp_path / "none.json", data))[0] == 0


@pytest.mark.parametrize(("given", "status"), [("", 0), pytest.param("=D0", 1, marks=pytest.mark.slow)])
def test_two_side_streams_failed_whatever_the_discipline(tmp_path: Path, given: str, status: int) -> None:
    program = write(
        tmp_path / "program.py",
        "import torch, torch_npu\n"
        "a = torch.randn(64, 64, device='npu'); torch.npu.synchronize()\n"
        "with torch.npu.stream(torch.npu.Stream()): torch.topk(a, 3)\n"
        "torch.sort(a)\n",
    )
    assert main(["run", "--chip", "910B3", "-q", f"--check-cores{given}", program]) == status


BEGIN = """
import os, torch, torch_npu, torch.distributed as dist
rank = int(os.environ["RANK"]); torch.npu.set_device(rank); dist.init_process_group("hccl")
g, h = dist.new_group([0, 1]), dist.new_group([0, 1])
x, y = torch.ones(64).npu(), torch.ones(64).npu()
"""
END = "torch.npu.synchronize(); dist.destroy_process_group()\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "engine", "verdict"),
    [
        (
            "works = [dist.all_reduce(t, group=k, async_op=True) for t, k in ((x, g), (y, h))]\n"
            "[work.wait() for work in works]",
            "AIV", "deadlock",
        ),
        ("w = dist.all_reduce(x, group=g, async_op=True); torch.nonzero(y); w.wait()", "AIV", "deadlock"),
        ("dist.all_reduce(x, group=g); torch.nonzero(y); dist.all_reduce(y, group=g); torch.sort(x)", "AIV", "safe"),
        (
            "pairs = [(x, g), (y, h)][:: 1 - 2 * rank]\n"
            "works = [dist.all_reduce(t, group=k, async_op=True) for t, k in pairs]; [w.wait() for w in works]",
            "", "safe",
        ),
    ],
)  # fmt: skip
def test_collectives_were_put_on_the_stream_that_calls_them(
    tmp_path: Path, body: str, engine: str, verdict: str
) -> None:
    program = write(tmp_path / "program.py", f"{BEGIN}{body}\n{END}")
    done = subprocess.run(
        [
            sys.executable, "-m", "toprope", "run", "--chip", "910B3", "--count", "2", "--check-cores=D0", "--json",
            "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", program,
        ],
        env={**os.environ, "HCCL_OP_EXPANSION_MODE": engine}, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    report = next(line for line in reversed(done.stderr.splitlines()) if line.startswith("{"))
    assert json.loads(report)["cores"]["verdict"] == verdict
    assert done.returncode == (1 if verdict == "deadlock" else 0)


def test_a_cyclic_event_is_a_deadlock_that_names_the_record(toprope: Any, tmp_path: Path) -> None:
    data = one_card(waits=["b"], records=["a"])
    data["streams"].append(
        {"name": "t", "card": "0", "ops": [{"name": "Add", "vector": 1, "waits": ["a"], "records": ["b"]}]}
    )
    status, out, err = toprope("check", write(tmp_path / "cyclic.json", data))
    assert (status, err) == (1, "")
    assert "cyclic-wait" in out
    assert "NonZero(0) -> Add(0)" in out
    assert "cyclic.json: streams[" in out


def test_a_file_that_is_not_there_and_a_trace_without_chip(toprope: Any, tmp_path: Path) -> None:
    status, _, err = toprope("check", str(tmp_path / "none.json"))
    assert status == 2
    assert "none.json cannot be read" in err
    trace = write(tmp_path / "trace.json", {"traceEvents": []})
    status, _, err = toprope("check", trace)
    assert status == 2
    assert "--chip" in err


def test_plan_writes_what_it_says(toprope: Any, tmp_path: Path) -> None:
    plan, script = tmp_path / "plan.json", tmp_path / "limits.py"
    status, out, _ = toprope("plan", FIGURE, "--json", str(plan), "--script", str(script))
    assert status == 0
    read = Plan.from_json(json.loads(plan.read_text()))
    assert [limit.is_limited for limit in read.limits] == [False, True, True]
    for limit in read.limits:
        seen = "-" if limit.vector is None else str(limit.vector)
        assert any(
            line.split()[0] == limit.stream and seen in line and limit.reason in line for line in out.splitlines()
        )
    assert "proven by exact: safe under D0" in out
    assert compile(script.read_text(), "limits.py", "exec")
    status, out, _ = toprope("plan", FIGURE, "--json", "-")
    assert (status, Plan.from_json(json.loads(out))) == (0, read)


def test_show_draws_the_run(toprope: Any, tmp_path: Path) -> None:
    svg, html = tmp_path / "x.svg", tmp_path / "x.html"
    status, out, _ = toprope("show", FIGURE, "--svg", str(svg), "--html", str(html))
    assert status == 0
    assert "deadlock after" in out
    assert "507034" in out
    assert svg.read_text().startswith("<svg ")
    assert "<svg " in html.read_text()
    status, out, _ = toprope("show", FIGURE, "--svg", "-", "--seed", "3", "--discipline", "D2")
    assert status == 0
    assert "D2, seed 3" in out
    assert 'class="arrow"' not in out
    assert toprope("show", FIGURE)[0] == 2


@pytest.mark.parametrize("code", ["507034", "507014", "507046", "507048", "107020", "EI0002", "EE1003"])
def test_explain_knows_the_codes(code: str, toprope: Any) -> None:
    status, out, _ = toprope("explain", code)
    assert status == 0
    assert out.startswith(code)
    assert "\ncores " in out
    assert "\ntry " in out
    assert "\nsource    https://" in out


def test_explain_reads_a_log(toprope: Any, tmp_path: Path) -> None:
    log = write(
        tmp_path / "plog.txt",
        "start\n[WARNING] HCCL: multi groups include aiv alg, may cause execution stuck. has aiv group count[2]\n"
        "[ERROR] error code is 507034\n[Error]: Vector core execution timed out.\n",
    )
    status, out, _ = toprope("explain", log)
    assert status == 0
    first, second = (
        " ".join(part.split()) for part in out.split("\n\n")
    )  # how lines break depends on the folder's name
    assert "plog.txt, line 2: " in first
    assert "plog.txt, line 3 (2 lines):" in second
    status, out, _ = toprope("explain", log, "--json")
    assert [each["seen"]["line"] for each in json.loads(out)] == [2, 3]
    assert "aiv" in toprope("explain", "multi groups include aiv alg")[1].lower()
    status, _, err = toprope("explain", write(tmp_path / "other.log", "all is well\n"))
    assert status == 2
    assert "other.log" in err
    assert toprope("explain", "999")[0] == 2
    status, out, _ = toprope("explain", "107001")
    assert status == 0
    assert "nothing to do with core limits" in out


def test_symptoms_are_whole() -> None:
    names = [each.name for each in symptoms()]
    assert len(set(names)) == len(names)
    codes = [code for each in symptoms() for code in each.codes]
    assert len(set(codes)) == len(codes)
    for each in symptoms():
        assert each.codes or each.patterns
        assert each.means
        assert each.causes
        assert each.try_
        assert all(source.startswith("https://") for source in each.sources)
        assert each.sources
    assert of_code("ei0002") is of_code("507048")
    assert seen_in(["took 507034.5 ms", "id 1507034"]) == ()


PROGRAM = """
    import sys, torch
    x = torch.ones(64, 64, device="npu")
    side = torch.npu.Stream()
    with torch.npu.stream(side):
        y = x @ x
    torch.npu.synchronize()
    print("done")
    sys.exit(int(sys.argv[1]))
"""


def run(folder: Path, *words: str) -> tuple[int, str, str]:
    (folder / "program.py").write_text(textwrap.dedent(PROGRAM))
    names = ("TOPROPE_SIM", "TOPROPE_DEVICE", "TOPROPE_RUN_DIR", "TOPROPE_TRACE", "PYTHON", "TORCH", "ASCEND")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(names)}
    done = subprocess.run(
        [sys.executable, "-m", "toprope", "run", *words], cwd=folder, env=kept, capture_output=True, text=True,
        timeout=280,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
def test_run_checks_what_the_program_did(tmp_path: Path) -> None:
    status, out, err = run(tmp_path, "--json", "--chip", "910B3", "--check-cores", "program.py", "0")
    assert (status, out) == (0, "done\n")
    told = json.loads(err.splitlines()[-1])["cores"]
    assert told["verdict"] == "safe"
    assert (told["cards"], told["streams"]) == (1, 2)
    assert told["operators"] >= 2
    # the program's own status counts before the check's
    status, out, err = run(tmp_path, "--chip", "910B3", "--check-cores", "program.py", "5")
    assert (status, out) == (5, "done\n")
    assert "\ntoprope: safe under every dispatch order" in err


def test_run_without_a_simulated_card_has_nothing_to_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = write(tmp_path / "program.py", "print('never')")
    assert main(["run", "--device", "cpu", "--check-cores", program]) == 2
    assert "--check-cores checks what a program does to the simulated card" in capsys.readouterr().err


def test_the_exit_status_is_the_checks_when_the_program_ends_well(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from toprope.cli.launch.select_target import Choice
    from toprope.cli.reports import run_cores
    from toprope.sim.spec import SimSpec

    choice = Choice("sim", SimSpec.make("910B1"))
    monkeypatch.setattr("toprope.cores.record.from_traces", lambda *_: record.read(FIGURE))
    monkeypatch.setattr("toprope.sim.tracing.tracer.read_run", lambda *_: [])
    found = run_cores.of_run(tmp_path, choice, "D0b")
    assert found.exit_status == found.facts["exit_status"] == 1
    assert render(*found.text).startswith("toprope: deadlock possible even under D1 on 2 cards")
    monkeypatch.undo()
    # nothing was recorded: not decided
    found = run_cores.of_run(tmp_path, choice, "D0b")
    assert found.exit_status == 3
    assert render(*found.text).startswith("toprope: the cores were not checked: ")

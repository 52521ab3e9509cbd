"""`toprope verify`: its program on the simulated card, and tables that are wrong on purpose.

Holds src/toprope/cli/verify.py, verification.py and verify_card.py of src/toprope/estimate/measured.
"""

import ast
import json
import os
import re
import signal
import subprocess
import sys
from copy import deepcopy
from dataclasses import replace

import pytest

from toprope import chips
from toprope.cli import main
from toprope.estimate.cost.costs import cost_of
from toprope.estimate.cost.rates import Rates, rates_of, shipped_rates
from toprope.estimate.cost.stored import place
from toprope.estimate.record.calls import OperatorCall, TensorShape
from toprope.support import operators_on_card, refusals

pytestmark = [pytest.mark.native, pytest.mark.process]

CHIP = chips.get("910B3")
PARTS = "memory,products,launch 1,copies,operators,dtypes,out of memory,bad index"


@pytest.fixture
def toprope(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    def call(*words):
        status = main(["verify", *map(str, words)])
        seen = capsys.readouterr()
        assert "Traceback" not in seen.err
        return status, seen.out, seen.err

    return call


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("verify") / "verify_card.py"
    assert main(["verify", str(path), "--chip", "910B3", "--torch-npu", "2.13.0"]) == 0
    return path


def run_on_the_simulated_card(program, *words):
    command = [sys.executable, "-m", "toprope", "run", "--quiet", "--chip", "910B3", "--torch-npu", "2.13.0"]
    return [*command, program.name, "--quick", *words]


@pytest.fixture(scope="module")
def measured(program):
    command = run_on_the_simulated_card(program, "--only", PARTS)
    done = subprocess.run(command, cwd=program.parent, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return program.with_name("verify_card.json")


def differing(out):
    return {each["what"]: each for each in json.loads(out)["findings"] if each["verdict"] == "differs"}


def test_the_program_needs_python_3_8_and_nothing_else(program):
    text = program.read_text()
    tree = ast.parse(text, feature_version=(3, 8))
    imported = {
        alias.name.partition(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    }
    assert not any(isinstance(node, ast.ImportFrom) for node in ast.walk(tree))
    assert imported - set(sys.stdlib_module_names) == {"torch", "torch_npu"}
    assert "special_entr" in text
    assert "gelu,default,0,float64" in text


def test_it_runs_on_the_simulated_card_and_all_but_times_is_compared(toprope, measured):
    status, out, err = toprope("--read", measured)
    assert (status, err) == (0, "")
    assert "a simulated card: its times are this machine's, so everything but times is compared" in out
    assert out.endswith("nothing differs of what was measured\n")
    facts = json.loads(toprope("--read", measured, "--json")[1])
    parts = {each["part"] for each in facts["findings"]}
    assert parts == {"memory", "operator", "dtype", "error text"}
    agreeing = [each["part"] for each in facts["findings"] if each["verdict"] == "agrees"]
    assert agreeing.count("operator") > 80
    assert agreeing.count("dtype") > 40
    assert (agreeing.count("memory"), agreeing.count("error text")) == (2, 3)
    assert facts["failed_parts"] == {}
    with_times = toprope("--read", measured, "--store")
    assert (with_times[0], "times are those of a simulated card" in with_times[2]) == (2, True)


def test_the_file_names_no_user_and_no_machine(measured):
    text = measured.read_text()
    assert str(measured.parent) not in text
    assert not re.search(rf"\b{re.escape(os.uname().nodename)}\b", text)
    assert not re.search(r'"[^"]*(/home|/root|/tmp)[^"]*"', text)


def test_a_wrong_usable_memory_is_found(toprope, measured, monkeypatch):
    wrong = replace(CHIP, hbm_usable_mib=50_000)
    monkeypatch.setattr(chips, "get", lambda name: wrong)
    status, out, _ = toprope("--read", measured, "--json")
    found = differing(out)
    assert status == 1
    assert set(found) == {"usable memory", "total of mem_get_info", "total capacity in it"}
    assert (found["usable memory"]["ours"], found["usable memory"]["measured"]) == ("48.8 GiB", "61.0 GiB")
    text = toprope("--read", measured)[1]
    assert "usable memory" in text
    assert "hbm_usable_mib of the 910B3" in text
    assert text.endswith("3 entries of toprope's tables differ from this card\n")


def test_wrong_fallbacks_are_found_in_both_directions(toprope, measured, monkeypatch):
    table = operators_on_card._table()
    new = "n" * len(operators_on_card.releases())
    none = new.replace("n", "-")
    histories = {**table.histories, "digamma.out": new, "digamma": new, "sin": none, "sin.out": none}
    host = table.host | {"sin", "sin.out"}
    wrong = replace(table, histories=histories, host=host - {"digamma", "digamma.out"})
    monkeypatch.setattr(operators_on_card, "_table", lambda: wrong)
    status, out, _ = toprope("--read", measured, "--json")
    found = differing(out)
    assert (status, set(found)) == (1, {"aten::digamma", "aten::sin"})
    assert found["aten::digamma"]["ours"] == "runs on the card"
    assert found["aten::digamma"]["measured"] == "falls back to the host (aten::digamma.out)"
    assert (found["aten::sin"]["ours"], found["aten::sin"]["measured"]) == (
        "falls back to the host",
        "runs on the card",
    )


def test_a_wrong_refusal_is_found(toprope, measured, monkeypatch):
    real = refusals.refusal

    def wrong(operator, dtypes, chip):
        return None if operator == "aten::gelu" else real(operator, dtypes, chip)

    monkeypatch.setattr(refusals, "refusal", wrong)
    monkeypatch.setattr(refusals, "known", lambda *rest: True)
    status, out, _ = toprope("--read", measured, "--json")
    found = differing(out)
    assert status == 1
    assert {what.split()[0] for what in found} == {"aten::gelu"}
    assert all(each["ours"] == "runs" and each["measured"].startswith("refuses: ") for each in found.values())


def test_the_program_was_overwritten_without_a_question(toprope, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("# my own\n")
    status, _, err = toprope(path)
    assert status == 2
    assert "is there already" in err
    assert "--overwrite" in err
    assert path.read_text() == "# my own\n"
    assert toprope(path, "--overwrite")[0] == 0
    assert "TABLES" in path.read_text()
    assert toprope("--read", tmp_path / "x.json", "--overwrite")[0] == 2


def test_the_measurements_were_overwritten_and_unknown_parts_passed_over(program, tmp_path):
    def run(*words):
        command = [sys.executable, str(program), *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)

    (tmp_path / "verify_card.json").write_text("{}")
    done = run()
    assert (done.returncode, (tmp_path / "verify_card.json").read_text()) == (2, "{}")
    assert "verify_card.json is there already; do: name another with --output, or add --overwrite" in done.stderr
    done = run("--only", "memory,copy", "--output", "other.json")
    assert done.returncode == 2
    assert "there is no part copy; do: choose from identity, memory" in done.stderr


def test_parts_that_were_not_measured_are_named(toprope, measured):
    left_out = {"vector", "launch 2", "launch 0"}
    status, out, _ = toprope("--read", measured)
    assert status == 0
    for part in left_out:
        assert f"part {part}: not begun: not among those of --only" in " ".join(out.split())
    assert "nothing differs of what was measured" in out
    facts = json.loads(toprope("--read", measured, "--json")[1])
    assert set(facts["missing_parts"]) == left_out


def test_ctrl_c_writes_what_there_is(program):
    output = program.with_name("stopped.json")
    command = run_on_the_simulated_card(program, "--output", output.name)
    process = subprocess.Popen(command, cwd=program.parent, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        for line in process.stderr:
            if "products" in line:
                break
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    facts = json.loads(output.read_text())
    ended = {each["part"]: each["ended"] for each in facts["parts"]}
    assert ended["memory"] == "ok"
    assert ended["bad index"] == "not begun: stopped early"
    assert facts["stopped"] == "stopped by the user"
    assert any(each["what"] == "total_memory" for each in facts["results"])
    assert main(["verify", "--read", str(output)]) == 0


def of_a_real_card(path, true, **changes):
    """A file as a card with these rates writes it."""
    results = [{"what": "simulated", "value": False}, {"what": "chip", "value": "Ascend910B3"},
               {"what": "torch", "value": "2.7.1"}, {"what": "torch_npu", "value": "2.7.1"},
               {"what": "total_memory", "value": CHIP.usable_bytes}]  # fmt: skip
    for dtype in ("float16", "float32"):
        for rows, columns, depth in ((4096, 4096, 4096), (8192, 8192, 8192), (2048, 2048, 2048), (4096, 4096, 11008),
                                     (4096, 11008, 4096), (2048, 8192, 4096)):  # fmt: skip
            shapes = [(rows, depth), (depth, columns)], [(rows, columns)]
            results.append(timed("aten::mm", dtype, *shapes, true))
    for name in ("gelu", "silu", "_softmax", "clone"):
        for edge in (4096, 8192, 16384):
            results.append(timed(f"aten::{name}", "float16", [(edge, edge)], [(edge, edge)], true))
    for queue in range(3):
        for kind in ("host", "matmul"):
            taken = true.launch(kind, queue=queue).likely
            results.append({"what": "launch", "kind": kind, "queue": queue, "seconds": [taken] * 5})
    results.append({"what": "synchronise", "queue": 1, "seconds": [true.synchronise().likely]})
    for pinned in (False, True):
        taken = true.copy(2**28, pinned=pinned).likely
        results.append({"what": "copy", "bytes": 2**28, "pinned": pinned, "to_card": True, "seconds": [taken] * 5})
    facts = {"format": 1, "release": "", "stopped": "", "parts": [], "results": results}
    path.write_text(json.dumps({**facts, **changes}))
    return path


def timed(name, dtype, inputs, outputs, true):
    tensors = [
        *(TensorShape(dtype, each) for each in inputs),
        *(TensorShape(dtype, each, "result") for each in outputs),
    ]
    taken = true.seconds(cost_of(OperatorCall(name, tuple(tensors)))).likely
    return {
        "what": "time",
        "operator": name,
        "dtype": dtype,
        "inputs": inputs,
        "outputs": outputs,
        "seconds": [taken] * 5,
    }


def test_times_of_a_real_card_that_differ_can_be_stored(toprope, tmp_path):
    table = deepcopy(shipped_rates(CHIP).table)
    table["products"]["attained"], table["launch"]["host"], table["launch"]["synchronise"] = 0.5, 60.0, 80.0
    table["host_link"]["pinned"] = 5.0
    true = Rates(CHIP, table)
    path = of_a_real_card(tmp_path / "card.json", true)
    status, out, _ = toprope("--read", path, "--json")
    found = differing(out)
    assert status == 1
    assert {each["part"] for each in found.values()} == {"time", "launch", "copy"}
    assert {what.split()[0] for what in found if found[what]["part"] == "time"} == {"mm"}
    assert all("float16" in what for what in found if found[what]["part"] == "time")
    assert "an operator, TASK_QUEUE_ENABLE=1" in found
    text = toprope("--read", path)[1]
    assert f"toprope verify --read {path} --store" in text
    assert "TFLOPS" in text
    status, text, _ = toprope("--read", path, "--store")
    assert (status, f"stored in {place('910B3')}" in text) == (1, True)
    stored = rates_of(CHIP)
    assert stored.table["products"]["attained"] == pytest.approx(0.5, rel=0.02)
    assert stored.launch().likely == pytest.approx(60e-6)
    assert stored.launch(queue=2).likely == pytest.approx(45e-6)
    assert stored.synchronise().likely == pytest.approx(80e-6)
    status, out, _ = toprope("--read", path)
    assert (status, out.endswith("nothing differs\n")) == (0, True)


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "no file of `toprope verify`"), ("[]", "no file of"), ('{"format": 7}', "no file of"),
     ('{"format": 1, "results": [{}], "parts": [], "release": "", "stopped": ""}', "no file of"),
     ('{"format": 1, "results": [{"what": "chip", "value": "910B3"}, {"what": "launch"}], "parts": [], "release": "", '
      '"stopped": ""}', "not of the form"),
     ('{"format": 1, "results": [], "parts": [], "release": "", "stopped": ""}', "does not say which chip"),
     ('{"format": 1, "results": [{"what": "chip", "value": "GeForce"}], "parts": [], "release": "", "stopped": ""}',
      "there is no chip")],
)  # fmt: skip
def test_what_is_no_file_of_the_program(toprope, tmp_path, text, said):
    path = tmp_path / "file.json"
    path.write_text(text)
    status, _, err = toprope("--read", path)
    assert status == 2
    assert said in err


def test_wrong_use_is_one_error(toprope, tmp_path):
    assert toprope("--store")[0] == 2
    assert toprope("--json")[0] == 2
    assert toprope("a.py", "--read", tmp_path / "x.json")[0] == 2
    assert toprope(tmp_path / "no" / "such.py")[0] == 2
    assert toprope("--read", tmp_path / "x.json")[0] == 2

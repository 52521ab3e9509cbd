"""`toprope doctor` and `toprope devices` as commands: statuses, output, time, and that they change nothing.

Holds `cli.doctor`, `cli.devices` and `cli.output.doctor_text`.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from toprope.cli import main
from toprope.device.doctor.torch_probe import examine

pytestmark = [pytest.mark.native, pytest.mark.process]

NO_NETWORK = """
import socket
def refuse(*arguments, **named):
    raise AssertionError("the network was asked")
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
"""


def toprope(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "toprope", *words],
        env={**os.environ, **variables}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


@pytest.mark.soak
@pytest.mark.parametrize("words", [["doctor", "--json"], ["devices", "--json"]])
def test_a_machine_without_npu_offline_in_less_than_10_s(words: Sequence[str], tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(NO_NETWORK)
    spent = []
    for _ in range(3):  # the machine may be busy with other things: one try in time is enough
        begin = time.monotonic()
        done = toprope(*words, PYTHONPATH=str(tmp_path))
        spent.append(time.monotonic() - begin)
        if spent[-1] < 10:
            break
    else:
        begin = time.monotonic()
        subprocess.run([sys.executable, "-c", "import torch"], check=True)
        assert min(spent) < 6 * (time.monotonic() - begin)  # elsewhere this takes less than 2 s
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["problems"], done.stderr) == (0, 0, "")
    devices = answer["devices"] if words[0] == "devices" else answer["facts"]["examination"]["devices"]
    assert [each["kind"] for each in devices][-1] == "cpu"


@pytest.mark.slow
def test_the_report_is_plain_text_to_be_pasted() -> None:
    done = toprope("doctor")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isprintable() or "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    assert re.match(r"found     toprope \S+ · Python \S+ \(\S+\) · torch \S+ · no torch_npu · no CANN", lines[0])
    # how fast bfloat16 is, is this CPU's own matter
    bfloat16 = r"bfloat16 (ok|slow \(\d+x float32\))"
    assert re.search(rf"^dtypes    cpu: float32 ok · {bfloat16} ·\s+float16 ", done.stdout, re.MULTILINE)
    assert re.search(r"^training  cpu ok \(\d+ ms\)$", done.stdout, re.MULTILINE)
    assert "no npu: torch_npu is not installed" in done.stdout
    assert lines[-1] == "no problem"


@pytest.mark.slow
def test_the_table_of_devices() -> None:
    done = toprope("devices", TOPROPE_SIM="910B3x2,hbm=1GiB", ASCEND_RT_VISIBLE_DEVICES="1")
    assert (done.returncode, done.stderr) == (0, "")
    header, card, cpu, *rest = done.stdout.splitlines()
    assert header.split() == ["device", "name", "card", "memory", "free", "dtype"]
    assert re.fullmatch(r"npu:0 +Ascend910B3 \(simulated\) +1 +1\.0 GiB of 1\.0 GiB +bfloat16", card)
    assert re.match(r"cpu  ", cpu)
    assert "ASCEND_RT_VISIBLE_DEVICES=1 shows 1 of 2 cards" in rest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"TOPROPE_DEVICE": "npu"}, ["there is no npu: torch_npu is not installed", "variable TOPROPE_DEVICE"]),
        ({"PREFERRED_DEVICE": "tpu"}, ["there is no kind of device 'tpu'", "PREFERRED_DEVICE=tpu"]),
        ({"TOPROPE_DEVICE": "npu", "TOPROPE_FALLBACK": "1"}, []),
    ],
)
def test_what_is_set_and_not_there_was_no_problem_to_doctor(variables: dict[str, str], words: list[str]) -> None:
    done = toprope("devices", "--json", **variables)
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["problems"], done.stderr) == (bool(words), bool(words), "")
    assert all(word in str(answer["findings"]) for word in words)


@pytest.mark.slow
def test_inside_of_toprope_run_the_card_is_said_to_be_simulated() -> None:
    done = toprope("run", "--quiet", "--chip", "910B3", "--count", "2", "-m", "toprope", "doctor")
    assert (done.returncode, done.stderr) == (0, "")
    assert "npu: 2 x Ascend910B3 (simulated), 61.0 GiB" in done.stdout
    assert "training  npu:0 ok (simulated) · cpu ok" in done.stdout
    assert "a simulated card" in done.stdout


@pytest.mark.slow
def test_the_process_of_the_command_imports_no_torch() -> None:
    code = (
        "import sys; from toprope.cli import main; status = main(['devices', '--json']); "
        'sys.stderr.write(f\'{status} {[name for name in ("torch", "numpy") if name in sys.modules]}\')'
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stderr == "0 []"


def test_codes_are_explained_without_starting_anything(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("a process was started"))
    assert main(["doctor", "107001", "ERR00100"]) == 0
    first, second = capsys.readouterr().out.split("\n\n")
    assert first.startswith(
        "107001    there is no card of this number in this process (ACL_ERROR_RT_INVALID_DEVICEID)\n"
    )
    assert second.startswith("ERR00100  torch_npu itself (PTA): a call to CANN (acl) failed\n")
    for word in ("\ncauses    ", "\ntry       ", "\nsource    https://"):
        assert word in first
    assert main(["doctor", "507998"]) == 0
    assert "there is no entry for this code itself" in capsys.readouterr().out


def test_a_stdout_that_knows_only_ascii() -> None:
    done = toprope("doctor", "EZ1001", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_message_on_stdin(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO("Traceback ...\nRuntimeError: ..., error code is 507034\n"))
    assert main(["doctor", "--json", "-"]) == 0
    assert [each["code"] for each in json.loads(capsys.readouterr().out)] == ["507034"]


@pytest.mark.parametrize("words", [["doctor", "12"], ["doctor", "no code in here"], ["doctor", "--wait", "0"]])
def test_what_cannot_be_explained_is_wrong_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    seen = capsys.readouterr()
    assert seen.out == ""
    assert seen.err


def stub(folder: Path, **modules: str) -> dict[str, str]:
    """Packages in front of all others, and the variables for a child that finds them."""
    for name, code in modules.items():
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(code)
    return {**os.environ, "PYTHONPATH": str(folder)}


@pytest.mark.parametrize(
    ("code", "ended"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "it was ended by SIGSEGV"),
        ("import os; os._exit(3)", "it ended with exit status 3"),
        ("raise SystemExit(4)", "it failed: SystemExit: 4"),
        ("import time; time.sleep(600)", "it did not answer within {wait} s"),
    ],
)
def test_a_torch_npu_that_ends_the_child_or_hangs(tmp_path: Path, code: str, ended: str) -> None:
    variables = stub(tmp_path, torch="__version__ = '2.13.0'", torch_npu=code)
    for wait in (2, 20) if "600" in code else (60,):  # on a busy machine it takes longer to get there
        found = examine(variables, wait=wait)
        if found.doing == "import torch_npu":
            break
    assert (found.torch, found.ended, found.doing) == ("2.13.0", ended.format(wait=wait), "import torch_npu")


def test_a_torch_that_cannot_be_imported(tmp_path: Path) -> None:
    variables = stub(tmp_path, torch="raise OSError('libgomp.so.1: cannot open')")
    found = examine(variables, wait=60)
    assert (found.torch, found.torch_error, found.ended) == ("", "OSError: libgomp.so.1: cannot open", "")


def test_the_switch_is_off_for_torchs_import_alone_and_found_again(tmp_path: Path) -> None:
    say = "import os\nseen = os.environ.get('TORCH_DEVICE_BACKEND_AUTOLOAD')\n"
    for before in (None, "1"):
        folder = tmp_path / str(before)
        folder.mkdir()
        torch = f"{say}__version__ = seen"
        variables = stub(folder, torch=torch, torch_npu=f"{say}raise ValueError(repr(seen))")
        variables.pop("TORCH_DEVICE_BACKEND_AUTOLOAD", None)
        if before is not None:
            variables["TORCH_DEVICE_BACKEND_AUTOLOAD"] = before
        found = examine(variables, wait=60)
        assert (found.torch, found.torch_npu_error) == ("0", f"ValueError: {before!r}")


@pytest.mark.parametrize(("switch", "wanted"), [("1", "ValueError: broken"), ("0", None)])
def test_a_plain_import_is_tried_where_there_are_backends_and_torch_would_load_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, switch: str, wanted: str | None
) -> None:
    monkeypatch.setattr("toprope.device.doctor.torch_probe._has_backends", lambda: True)
    torch = "import os\nif os.environ['TORCH_DEVICE_BACKEND_AUTOLOAD'] == '1': raise ValueError('broken')"
    variables = stub(tmp_path, torch=f"{torch}\n__version__ = 'x'") | {"TORCH_DEVICE_BACKEND_AUTOLOAD": switch}
    found = examine(variables, wait=60)
    assert (found.torch, found.import_error) == ("x", wanted)


def test_no_child_outlives_the_search(tmp_path: Path) -> None:
    mark = str(tmp_path / "alive")
    sleeps = "import time; time.sleep(60)"
    starts = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {sleeps!r}, {mark!r}])"
    examine(stub(tmp_path, torch="__version__ = 'x'", torch_npu=f"{starts}; {sleeps}"), wait=2)

    def running() -> list[str]:
        return [each.name for each in Path("/proc").iterdir() if each.name.isdigit() and mark in _command_line(each)]

    until = time.monotonic() + 20
    while running() and time.monotonic() < until:  # a process that was killed is there until it has released everything
        time.sleep(0.05)
    assert running() == []


def _command_line(process: Path) -> str:
    try:
        return (process / "cmdline").read_text(errors="replace")
    except OSError:
        return ""


def test_colour_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    from toprope.cli.output.doctor_text import codes_text, report
    from toprope.codes import explain
    from toprope.device.doctor.diagnosis import diagnose
    from toprope.device.host.machine import Facts
    from toprope.terminal import render, wants_colour

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert wants_colour()
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_colour()
    facts = Facts()
    plain, coloured = (render(report(facts, diagnose(facts)), colour=colour) for colour in (False, True))
    assert "\x1b" not in plain
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain != coloured
    assert "\x1b" in render(codes_text([explain("107001")]), colour=True)

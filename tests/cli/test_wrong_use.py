"""What a new user gets wrong: each has one clear error, and nothing that failed ends in silence."""

import subprocess
import sys
from pathlib import Path

import pytest

from toprope.cli import doctor, explain, main
from toprope.cli.reports import rehearsal_file, run_cores, trace_file
from toprope.cli.reports.run_cores import CoresCheck
from toprope.cli.reports.trace_file import TraceFile
from toprope.sim import build


def failed(capsys, *words, status=2):
    assert main([*map(str, words)]) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    return captured.err


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("rnu", "Did you mean 'run'?"),
        ("estimat", "Did you mean 'estimate', "),
        ("train.py", "A program is run by toprope run PROGRAM."),
    ],
)
def test_a_misspelt_command_had_no_advice(capsys, word, meant):
    assert f"No such command {word!r}. {meant}" in failed(capsys, word, "x")


@pytest.mark.parametrize("words", [["run"], ["cores", "check"], []])
def test_help_was_no_command(capsys, words):
    shown = []
    for asked in (["help", *words], [*words, "--help"]):
        assert main(asked) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    assert shown[0].startswith("Usage: toprope")


def test_a_program_that_an_option_took_for_its_value_was_missing_without_a_reason(capsys):
    err = failed(capsys, "run", "--chip", "train.py")
    assert "Missing argument 'PROGRAM': train.py is the value of --chip." in err


def test_the_number_of_cards_behind_the_chip_was_taken_for_another_chip(capsys, tmp_path):
    (tmp_path / "train.py").touch()
    err = failed(capsys, "run", "--chip", "Ascend910B3x2", tmp_path / "train.py")
    assert "name the chip alone, 910B3, and the number of cards as the count: --count 2" in err


def test_a_folder_was_no_file_of_that_name(capsys, tmp_path):
    (tmp_path / "train.py").touch()
    err = failed(capsys, "run", tmp_path)
    assert f"there is no program {str(tmp_path)!r}: it is a folder without a __main__.py." in err
    assert "1 files of Python in it" in err


def test_explain_knows_a_code_of_the_card_and_a_rule_in_capitals(capsys):
    assert "do         that is a code of the card, and not a page: toprope doctor 507034" in failed(
        capsys, "explain", "507034"
    )
    assert "toprope explain TR099" in failed(capsys, "explain", "TR999")


def test_a_file_for_verify_that_is_not_there_was_a_file_of_another_kind(capsys, tmp_path):
    err = failed(capsys, "verify", "--read", tmp_path / "none.json")
    assert "none.json cannot be read: No such file or directory." in err
    assert "Errno" not in err


# ---- files and packages that a command did not expect to miss


@pytest.mark.parametrize(
    ("place", "why"), [("file/below", "Not a directory"), ("x" * 300, "File name too long")], ids=["file", "long"]
)
def test_an_error_of_a_file_was_a_traceback(capsys, tmp_path, place, why):
    (tmp_path / "file").touch()
    err = failed(capsys, "images", "demo", tmp_path / place, status=3)
    assert err.startswith(f"toprope: a file or folder cannot be used: {why}.\n  looked at  {tmp_path}")
    assert err.endswith("\n  do         check the path\n")


@pytest.mark.slow
@pytest.mark.process
def test_an_error_of_a_file_in_code_of_the_user_keeps_its_traceback(tmp_path):
    program = tmp_path / "graph.py"
    program.write_text("open('/no/such/file')\n")
    command = [sys.executable, "-m", "toprope", "serve", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert f'File "{program}", line 1' in done.stderr
    assert done.stderr.endswith("FileNotFoundError: [Errno 2] No such file or directory: '/no/such/file'\n")


def test_a_package_of_an_extra_that_is_missing_was_a_traceback(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    err = failed(capsys, "images", "demo", tmp_path / "demo", status=3)
    assert err.startswith("toprope: this needs Pillow, which is not installed.\n")
    assert "[images]" in err


@pytest.mark.slow
@pytest.mark.process
def test_images_demo_in_a_place_that_takes_nothing_was_a_traceback(tmp_path):
    line = f"ulimit -f 1; exec {sys.executable} -m toprope images demo {tmp_path / 'demo'}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith(
        f"toprope: a file or folder cannot be used: File too large.\n  looked at  {tmp_path / 'demo'}/"
    )
    assert not list(tmp_path.rglob("*"))  # so that the next try is not refused


# ---- nothing fails in silence


def quiet_run(tmp_path, *options):
    return main(["run", "--quiet", "--chip", "910B3", *options, "true"])


def test_a_trace_that_could_not_be_written_was_silent_with_quiet(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(trace_file, "write", lambda path, _: TraceFile(str(path), error="No space left on device"))
    assert quiet_run(tmp_path, "--trace", str(tmp_path / "t.json")) == 3
    assert capsys.readouterr().err == (
        f"toprope: the trace could not be written to {tmp_path / 't.json'}: No space left on device\n"
    )


def test_a_report_that_could_not_be_written_left_the_exit_status_0(capsys, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(rehearsal_file, "writing_named", full)
    assert quiet_run(tmp_path, "--report", str(tmp_path / "r.html")) == 3
    assert "the report could not be written to" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_file_for_the_trace_of_cuda_is_tried_before_the_program_starts(capsys, tmp_path):
    assert quiet_run(tmp_path, "--trace-cuda", str(tmp_path / "none" / "t.json")) == 2
    assert "the trace cannot be written to" in capsys.readouterr().err


@pytest.mark.parametrize(("status", "said"), [(1, "toprope: deadlock possible on 1 card\n"), (0, "")])
def test_a_check_of_cores_that_failed_was_silent_with_quiet(capsys, tmp_path, monkeypatch, status, said):
    found = CoresCheck(status, ("toprope: deadlock possible on 1 card", "card 0 ..."), {})
    monkeypatch.setattr(run_cores, "of_run", lambda *_: found)
    assert quiet_run(tmp_path, "--check-cores") == status
    assert capsys.readouterr().err == said


def test_the_line_of_a_trace_holds_what_was_recorded_before(tmp_path, monkeypatch):
    def half(_, stream):
        stream.write("half")
        raise OSError(28, "No space left on device")

    path = tmp_path / "t.json"
    path.write_text("old")
    monkeypatch.setattr(trace_file, "write_run", half)
    assert trace_file.write(path, tmp_path).error == "No space left on device"
    assert {each.name: each.read_text() for each in Path(tmp_path).iterdir()} == {"t.json": "old"}


# ---- a machine that lacks something


def test_a_machine_without_a_compiler_had_no_problem(monkeypatch, tmp_path):
    monkeypatch.setattr(build, "is_ready", lambda: False)
    assert doctor._no_compiler() == ()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    (found,) = doctor._no_compiler()
    assert (found.name, found.problem) == ("no-compiler", False)
    assert "apt install g++" in found.do[0]
    monkeypatch.setenv("CXX", "'")
    (found,) = doctor._no_compiler()
    assert found.what == "the variable CXX cannot be read."
    monkeypatch.delenv("CXX")
    monkeypatch.setattr(build, "is_ready", lambda: True)
    assert doctor._no_compiler() == ()
    page = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text(encoding="utf-8")
    assert "`no-compiler`" in page


def test_the_simulated_card_without_torch_was_a_bare_import_error():
    code = "import sys; sys.modules['torch'] = None; import toprope.sim; toprope.sim.install()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "PackageError: the simulated card needs torch, which is not installed." in done.stderr
    assert "[torch]" in done.stderr


def test_completion_of_explain_had_no_pages():
    assert explain._page_names("tr01")[:2] == ["TR010", "TR011"]
    assert explain._page_names("device-i") == ["device-index"]

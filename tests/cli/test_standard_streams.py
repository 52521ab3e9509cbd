"""Closed and full standard streams: no command ends with a traceback.

Holds `cli.standard_streams` for `toprope`, `npu-smi` and `yr`.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from toprope.cli import app, standard_streams

pytestmark = pytest.mark.process

COMMAND = f"{sys.executable} -m toprope"


def shell(line):
    return subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=120)


@pytest.mark.slow
@pytest.mark.parametrize("words", ["devices", "explain run", "--version", "cores explain", "run --help"])
@pytest.mark.parametrize(("closed", "why"), [(">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")])
def test_an_output_that_takes_nothing_was_a_traceback(words, closed, why):
    done = shell(f"{COMMAND} {words} {closed}")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"toprope: the output cannot be written: {why}"
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_a_pipe_that_is_closed_ends_with_one_line():
    done = shell(f"{{ {COMMAND} explain refusals; echo $? >&2; }} | true")
    assert done.stderr in ("toprope: the output cannot be written: Broken pipe\n1\n", "0\n")  # all was written before


@pytest.mark.slow
def test_a_closed_stderr_does_not_change_the_answer():
    there, closed = (shell(f"{COMMAND} explain run {redirected}") for redirected in ("", "2>&-"))
    assert (closed.returncode, closed.stdout) == (there.returncode, there.stdout)
    assert closed.returncode == shell(f"{COMMAND} devices 2>&-").returncode == 0
    assert shell(f"{COMMAND} explain nonsense 2>&-").returncode == 2
    assert shell(f"{COMMAND} explain nonsense 2>/dev/full").returncode == 1


def test_with_stdin_closed_it_is_empty():
    done = shell(f"{COMMAND} doctor - <&-")
    assert done.returncode == 2
    assert done.stderr.startswith("toprope: there is no code and no known message in that text.")


@pytest.mark.parametrize("verb", sorted(app.VERBS))
def test_every_verb_goes_through_the_guard(verb, monkeypatch):
    guarded = []
    monkeypatch.setattr(app, "guarded", lambda command: guarded.append(command) or 0)
    assert app.main([verb]) == 0
    assert len(guarded) == 1


def test_other_errors_of_files_are_not_taken_for_the_output():
    def command():
        Path("/proc/self/mem/no").read_text(encoding="utf-8")

    with pytest.raises(OSError, match="/proc/self/mem/no"):
        standard_streams.guarded(command)


def test_the_program_of_run_finds_its_closed_stdout_closed(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import sys; print(1); sys.exit(7 if sys.stdout is None else 8)")
    done = shell(f"{COMMAND} run --quiet --device cpu {program} >&-")
    assert (done.returncode, done.stderr) == (7, "")

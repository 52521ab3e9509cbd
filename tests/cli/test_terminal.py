"""Text and progress on terminals and elsewhere: nothing is cut off, whatever is shown and however narrow the terminal.

Holds `toprope.terminal` and `toprope.progress`.
"""

import io
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from toprope import progress as module
from toprope import terminal
from toprope.progress import Progress, Step
from toprope.terminal import Display, field, render, table, unbroken

COMMAND = "torch.npu.set_stream_limit(stream, vector_num=8) # " + "long " * 30
PATH = "/data/" + "folder/" * 30 + "picture [1].png"
WORDS = st.lists(st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=40), min_size=1)


@given(WORDS, st.none() | st.integers(20, 120), st.booleans())
def test_no_word_is_lost_or_broken(words, width, colour):
    text = " ".join(words)
    items = (text, *field("label", text, width=60), table([(text, text)], ("one", "two"), wrapped=(0, 1)))
    shown = re.sub(r"\x1b\[[0-9;]*m", "", render(*items, width=width, colour=colour))
    for word in words:
        assert shown.count(word) >= 4


@pytest.mark.parametrize("width", [60, 110, None])
def test_no_word_is_lost_where_term_is_dumb(monkeypatch, width):
    """rich took such a terminal to have 80 columns, and an address that is longer lost its end."""
    monkeypatch.setenv("TERM", "dumb")
    address = f"https://example.org/{'a' * 120}"
    assert address in render(*field("memory", "21 GiB", f"the size is from {address}", label_width=12), width=width)
    assert address in render(table([["memory", address]]), width=width)


def test_a_pipe_gets_whole_lines_without_control_characters():
    items = (COMMAND, *field("do:", unbroken(COMMAND), PATH), table([("a", PATH), ("bb", "")], ("x", "y")))
    shown = render(*items, Text("red [bold]x[/bold]", "bold red"))
    assert shown.splitlines() == [
        COMMAND.rstrip(), f"do:       {COMMAND}", f"          {PATH}", "x   y", f"a   {PATH}", "bb",
        "red [bold]x[/bold]",
    ]  # fmt: skip


def test_a_terminal_wraps_prose_but_no_command_and_no_cell_that_is_one():
    shown = render(*field("do:", "some words " * 20, unbroken(COMMAND)), width=40).splitlines()
    assert len(shown) > 5
    assert max(map(len, shown[:-1])) <= 40
    assert shown[-1] == f"          {COMMAND}"
    assert "60.97 GiB of 64.00 GiB" in render(table([("a long name of a card", "60.97 GiB of 64.00 GiB")]), width=30)


def test_cells_are_as_wide_as_they_look():
    first, second = render(table([("中文", "x"), ("abcd", "y")])).splitlines()
    assert (first, second) == ("中文  x", "abcd  y")


def test_the_command_line_does_not_import_rich_before_it_writes():
    code = "import sys, toprope, toprope.cli.app, toprope.terminal, toprope.progress; sys.exit('rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_progress_is_reported_after_a_while_and_not_too_often(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: clock[0])
    seen = []
    progress = Progress(seen.append, seen.append, total=100, unit="B", after=2.0, every=0.2)
    progress.stage("loading")
    progress.advance(10)  # too early
    clock[0] = 3.0
    progress.advance(40)
    clock[0] = 3.1
    progress.advance(10)  # too soon
    progress.advance(40)  # the last one
    assert seen == ["loading", Step(50, 100, 3.0, "", "B"), Step(100, 100, 3.1, "", "B")]
    assert (seen[1].amount, seen[1].left) == ("50 B of 100 B", 3.0)


@pytest.mark.parametrize(
    ("step", "amount", "rate", "left"),
    [
        (Step(7, 28, 14.0), " 7/28", "2.0 s/step", 42.0),
        (Step(1, 2, 0.01), "1/2", "10 ms/step", 0.01),
        (Step(2, 8, 4.0, unit="file"), "2/8", "2.0 s/file", 12.0),
        (Step(3 * 10**9, 6 * 10**9, 2.0, unit="B"), "3.0 GB of 6.0 GB", "1.5 GB/s", 2.0),
        (Step(0, 9, 1.0), "0/9", "1.0 s/step", 9.0),
    ],
)
def test_a_step_in_words(step, amount, rate, left):
    assert (step.amount, step.rate) == (amount, rate)
    assert step.left == pytest.approx(left)


def test_progress_in_a_pipe_is_a_plain_line_now_and_then(monkeypatch, capsys):
    clock = [100.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: clock[0])
    with Display("weights") as display:
        display.stage("loading")
        for second in range(31):
            clock[0] = 100.0 + second
            display.step(Step(second, 40, float(second)))
    seen = capsys.readouterr()
    assert seen.out == ""
    assert seen.err.splitlines() == [
        "toprope: weights   8/40  1.0 s/step  32 s left", "toprope: weights  16/40  1.0 s/step  24 s left",
        "toprope: weights  24/40  1.0 s/step  16 s left",
    ]  # fmt: skip
    with Display("weights", quiet=True) as display:
        clock[0] += 100
        display.step(Step(1, 2, 1.0))
    assert capsys.readouterr().err == ""


def test_progress_on_a_terminal_leaves_nothing_behind(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    for variables in ({"TERM": "xterm"}, {"TERM": "xterm", "NO_COLOR": "1"}, {"TERM": "dumb"}):
        monkeypatch.delenv("NO_COLOR", raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "stderr", Terminal())
        with Display("a name [1]") as display:
            display.stage("loading")
            display.step(Step(2, 2, 1.0))
            display.clear()
            drawn = sys.stderr.getvalue()
        if variables["TERM"] == "dumb":
            assert drawn == ""
            continue
        assert "loading ..." in drawn
        assert "a name [1]" in drawn
        assert "2/2" in drawn
        assert drawn.endswith("\x1b[1A\x1b[2K")
        assert bool(re.search(r"\x1b\[[0-9;]+m", drawn)) == ("NO_COLOR" not in variables)

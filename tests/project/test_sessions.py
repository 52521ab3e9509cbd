"""Terminal sessions of the pages: the commands print what the pages show. Holds scripts/sessions.py."""

import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import sessions

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]
MARK = "<!-- tested -->\n```console\n"
PAGES = [  # the blocks of Chinese pages are those of the English ones: test_pages.py
    page
    for page in sorted((ROOT / "docs").rglob("*.md"))
    if MARK in page.read_text(encoding="utf-8") and not page.name.endswith(".zh.md")
]


def test_there_are_sessions():
    tutorials = {page.name for page in (ROOT / "docs" / "tutorials").glob("*.md") if not page.name.endswith(".zh.md")}
    assert len(tutorials) >= 6
    assert {"start.md"} | tutorials <= {page.name for page in PAGES}
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        consoles = [each for each in sessions.blocks(text) if not each["name"]]
        assert len(consoles) == text.count("\n```console\n"), f"{page}: a console block without <!-- tested -->"


@pytest.mark.slow
@pytest.mark.native
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_page_shows_what_is_printed(page):
    text = page.read_text(encoding="utf-8")
    assert sessions.run(text) == text, f"python scripts/sessions.py {page.relative_to(ROOT)} --update"


def test_the_readme_and_the_page_show_the_first_example():
    program = f"```python\n{(ROOT / 'examples' / 'first.py').read_text(encoding='utf-8')}```\n"
    for name in ("README.md", "docs/start.md"):
        assert program in (ROOT / name).read_text(encoding="utf-8"), name


def test_the_picture_of_the_first_report_is_of_the_page():
    command = [sys.executable, str(ROOT / "scripts" / "report_figure.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


PAGE = """Text.

<!-- file: a.txt -->
```text
one
```

<!-- tested -->
```console
$ cat a.txt; echo two >> a.txt
ONE
$ cat a.txt; echo took 1.5 s
one
two
took 9 ms
```
"""


def test_blocks_share_a_folder_and_a_wrong_output_is_found():
    now = sessions.run(PAGE)
    assert now == PAGE.replace("ONE", "one")  # times alone stay as the page has them
    assert sessions.run(now) == now


def test_output_is_a_terminals():
    page = "<!-- tested -->\n```console\n$ test -t 1 && test -t 2 && echo both >&2; stty size < /dev/stdout\n```\n"
    assert sessions.run(page).endswith(f"both\n40 {sessions.COLUMNS}\n```\n")


def test_a_command_that_does_not_end_is_killed_with_its_children(tmp_path, monkeypatch):
    monkeypatch.setattr(sessions, "SECONDS", 0.5)
    with pytest.raises(TimeoutError, match="no end after"):
        sessions.printed("sleep 1000 & sleep 1000", tmp_path)


def test_a_file_may_lie_in_a_folder_of_its_own():
    page = "<!-- file: one/two/a.txt -->\n```text\n1\n```\n<!-- tested -->\n```console\n$ cat one/two/a.txt\n1\n```\n"
    assert sessions.run(page) == page


def test_the_port_of_a_service_is_free_and_shown_as_the_page_has_it():
    page = f"<!-- tested -->\n```console\n$ echo port {sessions.PORT} > a; grep -c {sessions.PORT} a; cat a\n```\n"
    assert sessions.run(page).endswith(f"cat a\n1\nport {sessions.PORT}\n```\n")
    with socket.socket() as one:
        one.bind(("127.0.0.1", int(sessions.free_port())))


def test_what_is_exported_is_there_for_the_commands_that_follow():
    page = "<!-- tested -->\n```console\n$ export A=1 B='2 3'\n$ echo $A $B\n1 2 3\n```\n"
    assert sessions.run(page) == page


def test_a_service_that_a_session_left_behind_ends_with_it(tmp_path):
    page = f"<!-- tested -->\n```console\n$ sleep 1000 > /dev/null 2>&1 & echo $! > {tmp_path}/pid\n```\n"
    assert sessions.run(page) == page
    number = int((tmp_path / "pid").read_text())
    psutil.wait_procs([psutil.Process(number)] if psutil.pid_exists(number) else [], timeout=60)
    assert not psutil.pid_exists(number) or psutil.Process(number).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    ("shown", "now", "same"),
    [
        ("2 passed in 0.05s", "2 passed in 1.25s", True),
        ("2 passed in 0.05s", "2 passed in 71.25s (0:01:11)", True),
        ("24.8 GB/s (measured)", "3 GB/s (measured)", True),
        ("1.04 x the limit", "1.1 x the limit", True),
        ("24.8 GB (27 groups)", "24.9 GB (27 groups)", False),
        ("1.3 to 2.5 ms a step", "0.9 to 1 s a step", True),
        ("a long\n   line", "a long line", True),
        ("[W1130 15:08:05.429 npu]", "[W1201 01:00:00.1 npu]", True),
        ("10 times", "11 times", False),
        ("peak 39.3 MiB", "peak 39.4 MiB", False),
    ],
)
def test_times_are_masked_and_nothing_else(shown, now, same):
    assert (sessions.masked(shown) == sessions.masked(now)) is same


def test_a_block_that_does_not_begin_with_a_command_is_an_error():
    with pytest.raises(ValueError, match="begins with a command"):
        sessions.commands("output\n$ echo\n")

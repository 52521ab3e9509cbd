"""The page docs/functions_call.md: its drawing is the script's, and a call really passes the files that it names.

A module of `functions.local` that moves or gets a new name changes the page, too.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from functions_session import session
from toprope import functions as yr

pytestmark = [pytest.mark.native, pytest.mark.process]

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "functions_call.md").read_text(encoding="utf-8")
TABLE = re.findall(r"^\| `([\w/]+\.py)` \|", PAGE, re.MULTILINE)


@yr.instance
class Counter:
    def __init__(self):
        self.total = 0

    def add(self, amount):
        self.total += amount
        return self.total


def test_the_drawing_is_the_one_of_the_script():
    command = [sys.executable, str(ROOT / "scripts" / "call_figure.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    figure = (ROOT / "docs" / "figures" / "functions-call.svg").read_text(encoding="utf-8")
    assert set(re.findall(r">\d+ ([\w/]+\.py)<", figure)) == set(TABLE)


def test_a_call_passes_the_files_of_the_page_and_no_others():
    assert len(TABLE) <= 10
    folder = ROOT / "src" / "toprope" / "functions"
    named = {*TABLE, *re.findall(r"`([\w/]+\.py)`", PAGE)}
    assert all((folder / each).is_file() for each in named), named
    seen = set()

    def profile(frame, event, argument):
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(folder):
            seen.add(path.relative_to(folder).as_posix())

    with session():
        counter = Counter.invoke()
        assert yr.get(counter.add.invoke(1), 60) == 1
        before = sys.getprofile()
        sys.setprofile(profile)
        try:
            assert yr.get(counter.add.invoke(2), 60) == 3
        finally:
            sys.setprofile(before)
        counter.terminate()
    assert {"api/proxies.py", "local/session.py", "local/dispatcher.py", "transport/wire.py"} <= seen
    assert seen <= named, f"not on the page: {seen - named}"

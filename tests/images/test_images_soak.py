"""200 edits in three tabs, and `kill -9` of the server in the middle of one: no record is lost, memory is flat.

Runs in `make soak` alone. Holds `images.web` as a whole.
"""

import json
import random
import signal
import sqlite3
from contextlib import closing

import psutil
import pytest
from PIL import Image

from images_page import CHROMIUM, LONG, Server, Tab, chromium
from images_tiny import picture
from toprope.images.picture.files import record_in

pytestmark = [
    pytest.mark.native,
    pytest.mark.process,
    pytest.mark.browser,
    pytest.mark.soak,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium (Debian: apt install chromium)"),
]

EDITS = 200
WARM = 20
"""Edits after which a server has what it keeps: libraries, buffers, the pages' parts."""
GROWTH = 0.15 * 2**20
"""Bytes by which a server may grow for each edit that follows; measured were 0.04 MiB."""
OPEN = 3
"""Edits of one session that wait or run at the same time; the server takes four."""


class Visitor(Tab):
    """A tab with a session of its own, which asks for edits with instructions that tell them apart."""

    def ask(self, number):
        """Ask for an edit and see that it was taken."""
        self.page.wait_for_function(
            f"document.querySelectorAll('#ended tr:is([data-state=waiting], [data-state=running])').length < {OPEN}"
        )
        self.page.fill("#instruction textarea", words_of(number))
        self.page.fill("#seed :is(input, textarea)", str(number))
        self.settle()
        self.page.click("#edit")
        self.page.wait_for_function(
            "words => [...document.querySelectorAll('#ended td, #gallery .caption-label')]"
            ".some(each => each.textContent.includes(words))",
            arg=words_of(number),
        )

    def rest(self):
        """Wait until no edit of this tab waits or runs."""
        self.page.wait_for_function(
            "!document.querySelector('#ended tr:is([data-state=waiting], [data-state=running])')"
        )


def words_of(number):
    return f"make it snow {number:03}"


def steps_in(folder):
    """The edits that the server's file has, by their instruction, whatever runs meanwhile."""
    with closing(sqlite3.connect(f"file:{folder / 'out' / 'sessions.sqlite'}?mode=ro", uri=True)) as db:
        rows = db.execute("SELECT state, files, request, session FROM steps WHERE request IS NOT NULL").fetchall()
    found = {}
    for state, files, request, session in rows:
        asked = json.loads(request)
        assert asked["instruction"] not in found  # none was asked for twice
        found[asked["instruction"]] = (state, json.loads(files), asked, session)
    return found


def memory_of(server):
    """Bytes that belong to the process alone."""
    return psutil.Process(server.process.pid).memory_full_info().uss


def done_of(server):
    return server.device()["queue"]["done"]


def test_200_edits_in_three_tabs_and_a_killed_server_lose_no_record_and_memory_is_flat(
    tmp_path, record_property, pytestconfig
):
    chosen = random.Random(pytestconfig.getoption("hypothesis_seed", default=None) or 26)
    middle = chosen.randint(EDITS * 9 // 20, EDITS * 11 // 20)
    picture(64, 48).save(tmp_path / "cat.png")
    server = Server(tmp_path)
    seen = []  # number of edits of a server that were done, bytes
    try:
        with chromium() as browser:
            tabs = [Visitor.loaded(browser, server) for _ in range(3)]
            for tab in tabs:
                tab.fill(tmp_path / "cat.png", steps=2)
            for number in range(middle):
                tabs[number % 3].ask(number)
                if number in (WARM, middle - 1):
                    seen.append((done_of(server), memory_of(server)))
            for tab in tabs:
                tab.rest()
            with server.held():
                for at, tab in enumerate(tabs):
                    tab.ask(middle + at)
                tabs[0].wait("#queue tr[data-state=running]")
                before = steps_in(tmp_path)
                server.process.send_signal(signal.SIGKILL)
                server.process.wait()
            port = int(server.url.rpartition(":")[2])
            stopped = steps_in(tmp_path)
            assert stopped.keys() == before.keys() == {words_of(number) for number in range(middle + 3)}
            server = Server(tmp_path, port=port)
            server.said("is ready on npu:1")
            for tab in tabs:
                tab.page.reload()
                tab.wait("#steps input[type=number]")
            after = steps_in(tmp_path)
            open_then = {words for words, row in stopped.items() if row[0] in ("waiting", "running")}
            assert len(open_then) >= 3
            assert {words for words, row in after.items() if row[0] == "interrupted"} == open_then
            assert {words for words, row in after.items() if row[0] == "done"} == stopped.keys() - open_then
            for tab in tabs:
                tab.see("#ended", "interrupted")
                tab.page.click("#resume")
                tab.rest()
            for number in range(middle + 3, EDITS):
                tabs[number % 3].ask(number)
                if number == middle + 3 + WARM:
                    seen.append((done_of(server), memory_of(server)))
            for tab in tabs:
                tab.rest()
            seen.append((done_of(server), memory_of(server)))
            assert [tab.errors for tab in tabs] == [[], [], []]
            assert [tab.elsewhere for tab in tabs] == [[], [], []]
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(LONG) == 0
    finally:
        server.end()
    (first, small), (second, large), (third, again), (last, most) = seen
    record_property("memory", [(count, round(size / 2**20, 1)) for count, size in seen])
    check_files(tmp_path)
    assert large - small <= GROWTH * (second - first), seen
    assert most - again <= GROWTH * (last - third), seen


def check_files(folder):
    """Every edit that a page was shown has its picture and its record, and there is nothing else."""
    out = folder / "out"
    kept = {each.name for each in out.iterdir() if each.is_file()}
    found = steps_in(folder)
    assert found.keys() == {words_of(number) for number in range(EDITS)}
    assert {row[0] for row in found.values()} == {"done"}
    assert len({row[3] for row in found.values()}) == 3
    named = set()
    for words, (_, files, asked, _) in found.items():
        made, sidecar = out / files["picture"], out / files["sidecar"]
        named |= {made.name, sidecar.name}
        record = json.loads(sidecar.read_text(encoding="utf-8"))
        assert (record["request"]["instruction"], str(record["seed"])) == (words, asked["seed"])
        with Image.open(made) as opened:
            opened.load()
        assert record_in(made)["request"]["instruction"] == words
    assert kept - named <= {"sessions.sqlite", "sessions.lock"}

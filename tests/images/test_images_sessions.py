"""Sessions of the editor: trees with undo, redo and branches, kept through restarts and kills.

Holds `images.web.sessions`.
"""

import os
import re
import signal
import subprocess
import sys
import threading

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from toprope.errors import EnvironmentProblem, UsageError
from toprope.images.web.sessions import Sessions, StepState, new_session

pytestmark = pytest.mark.native


@pytest.fixture
def sessions():
    found = Sessions()
    yield found
    found.close()


def edited(sessions, session, parent, number=0):
    (step,) = sessions.begin(session, parent, {"instruction": f"edit {number}"})
    sessions.run(session, step.number)
    return sessions.done(session, step.number, {"picture": f"{step.number}.png"})


def test_undo_and_redo_walk_the_branch_that_was_shown_last(sessions) -> None:
    mine = new_session()
    sessions.join(mine)
    assert sessions.current(mine) is None
    assert sessions.undo(mine) is sessions.redo(mine) is None
    cat = sessions.bring(mine, "cat.png", {"picture": "cat.png"})
    snow = edited(sessions, mine, cat.number)
    night = edited(sessions, mine, snow.number)
    assert sessions.current(mine) == night
    assert sessions.undo(mine).number == snow.number
    assert sessions.undo(mine).number == cat.number
    assert sessions.undo(mine) is None
    rain = edited(sessions, mine, cat.number)  # a branch
    assert sessions.current(mine).number == rain.number
    assert sessions.undo(mine).number == cat.number
    assert sessions.redo(mine).number == rain.number
    assert sessions.show(mine, snow.number).number == snow.number
    assert sessions.undo(mine).number == cat.number
    assert sessions.redo(mine).number == snow.number
    assert sessions.redo(mine).number == night.number
    assert [(each.number, each.parent) for each in sessions.steps(mine)] == [
        (cat.number, None), (snow.number, cat.number), (night.number, snow.number), (rain.number, cat.number),
    ]  # fmt: skip


def test_an_edit_that_ends_while_another_step_is_looked_at_does_not_take_its_place(sessions) -> None:
    mine = new_session()
    sessions.join(mine)
    cat = sessions.bring(mine, "cat.png", {})
    (slow,) = sessions.begin(mine, cat.number, {})
    dog = sessions.bring(mine, "dog.png", {})
    sessions.done(mine, slow.number, {})
    assert sessions.current(mine).number == dog.number


def test_what_failed_cannot_be_shown_or_edited_and_keeps_its_reason(sessions) -> None:
    mine = new_session()
    sessions.join(mine)
    cat = sessions.bring(mine, "cat.png", {})
    (step,) = sessions.begin(mine, cat.number, {})
    assert (
        sessions.end(mine, step.number, StepState.FAILED, {"what": "out of memory"}).problem["what"] == "out of memory"
    )
    for call in (sessions.show, lambda *where: sessions.begin(*where, {})):
        with pytest.raises(UsageError, match="no picture"):
            call(mine, step.number)
    assert sessions.redo(mine) is None


def test_sessions_do_not_see_each_other(sessions) -> None:
    mine, other = new_session(), new_session()
    sessions.join(mine)
    sessions.join(other)
    cat = sessions.bring(mine, "cat.png", {})
    for call in (sessions.step, sessions.show, lambda *where: sessions.begin(*where, {})):
        with pytest.raises(UsageError, match="no such step"):
            call(other, cat.number)
    assert sessions.steps(other) == []
    assert [each.number for each in sessions.forget(mine)] == [cat.number]
    assert sessions.steps(mine) == []
    assert sessions.current(mine) is None


@pytest.mark.parametrize("session", ["", "a", "../../etc/passwd", "x" * 65, "' OR 1=1 --aaaaaaaaaaaaaaaa"])
def test_an_id_that_we_do_not_make_is_refused(sessions, session) -> None:
    with pytest.raises(UsageError, match="that is no session"):
        sessions.join(session)


def test_a_session_survives_the_server_and_what_ran_is_interrupted(tmp_path) -> None:
    mine, file = new_session(), tmp_path / "sessions.sqlite"
    first = Sessions(file)
    first.join(mine)
    cat = first.bring(mine, "cat.png", {"picture": "cat.png"})
    snow = edited(first, mine, cat.number)
    (waits,) = first.begin(mine, snow.number, {"instruction": "wait"})
    (runs,) = first.begin(mine, snow.number, {"instruction": "run"})
    first.run(mine, runs.number)
    first.close()
    second = Sessions(file)
    assert second.current(mine) == snow
    assert [second.step(mine, each.number).state for each in (waits, runs)] == [StepState.INTERRUPTED] * 2
    assert second.step(mine, runs.number).request == {"instruction": "run"}
    second.close()


def test_a_second_server_on_a_folder_is_refused_and_takes_no_edit_for_an_interrupted_one(tmp_path) -> None:
    mine, file = new_session(), tmp_path / "sessions.sqlite"
    first = Sessions(file)
    first.join(mine)
    (runs,) = first.begin(mine, first.bring(mine, "cat.png", {}).number, {"instruction": "run"})
    first.run(mine, runs.number)
    with pytest.raises(EnvironmentProblem, match=re.escape(f"keeps its sessions in {tmp_path}")) as refused:
        Sessions(file)
    assert f"process {os.getpid()}" in refused.value.looked_at
    assert first.step(mine, runs.number).state is StepState.RUNNING
    first.close()
    Sessions(file).close()
    file.write_bytes(b"no database at all" * 99)
    for _ in range(2):  # a failed start holds nothing
        with pytest.raises(EnvironmentProblem, match="cannot be kept"):
            Sessions(file)


def test_a_server_that_is_killed_loses_no_step_that_it_reported(tmp_path) -> None:
    code = """
import sys
from toprope.images.web.sessions import Sessions
sessions, mine = Sessions(sys.argv[1]), sys.argv[2]
sessions.join(mine)
parent = sessions.bring(mine, "cat.png", {}).number
while True:
    (step,) = sessions.begin(mine, parent, {"instruction": "x" * 1000})
    parent = sessions.done(mine, step.number, {"picture": f"{step.number}.png"}).number
    print(parent, flush=True)
"""
    mine, file = new_session(), tmp_path / "sessions.sqlite"
    for kills in range(1, 4):
        child = subprocess.Popen([sys.executable, "-c", code, str(file), mine], stdout=subprocess.PIPE, text=True)
        last = [int(child.stdout.readline()) for _ in range(20)][-1]
        os.kill(child.pid, signal.SIGKILL)
        last = int((child.communicate(timeout=60)[0].split() or [last])[-1])
        again = Sessions(file)
        found = {each.number: each for each in again.steps(mine)}
        assert found[last].state is StepState.DONE
        assert len(found) >= 20 * kills
        again.close()


@pytest.mark.parametrize("content", [b"no database at all", b"SQLite format 3\0" + b"\xff" * 4000])
def test_a_file_that_is_no_database_is_an_error_that_names_it(tmp_path, content) -> None:
    file = tmp_path / "sessions.sqlite"
    file.write_bytes(content)
    with pytest.raises(EnvironmentProblem, match=re.escape(str(file))):
        Sessions(file)
    assert file.read_bytes() == content


def test_the_file_of_a_newer_toprope_is_left_alone(tmp_path) -> None:
    import sqlite3

    file = tmp_path / "sessions.sqlite"
    with sqlite3.connect(file) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(EnvironmentProblem, match="newer toprope"):
        Sessions(file)


def test_too_many_steps_are_refused_and_none_is_forgotten() -> None:
    sessions, mine = Sessions(most=3), new_session()
    sessions.join(mine)
    cat = sessions.bring(mine, "cat.png", {})
    for number in range(2):
        edited(sessions, mine, cat.number, number)
    with pytest.raises(UsageError, match="3 steps, which is the most"):
        sessions.begin(mine, cat.number, {})
    assert len(sessions.steps(mine)) == 3


def test_threads_add_steps_side_by_side(tmp_path) -> None:
    sessions = Sessions(tmp_path / "sessions.sqlite")
    ids = [new_session() for _ in range(4)]

    def work(session: str) -> None:
        sessions.join(session)
        parent = sessions.bring(session, "cat.png", {}).number
        for number in range(10):
            parent = edited(sessions, session, parent, number).number

    threads = [threading.Thread(target=work, args=(session,)) for session in ids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for session in ids:
        steps = sessions.steps(session)
        assert [each.parent for each in steps] == [None, *(each.number for each in steps[:-1])]
        assert sessions.current(session) == steps[-1]
    sessions.close()


class Editing(RuleBasedStateMachine):
    """One session next to a tree kept in plain dictionaries."""

    pictures = Bundle("pictures")

    def __init__(self) -> None:
        super().__init__()
        self.sessions, self.mine = Sessions(), new_session()
        self.sessions.join(self.mine)
        self.parents: dict[int, int | None] = {}
        self.shown: list[int] = []  # each number once, the one that was shown last at the end
        self.current: int | None = None

    def see(self, number: int) -> None:
        self.current = number
        self.touch(number)

    def touch(self, number: int) -> None:
        self.shown = [each for each in self.shown if each != number] + [number]

    @rule(target=pictures)
    def bring(self):
        step = self.sessions.bring(self.mine, "a.png", {})
        self.parents[step.number] = None
        self.see(step.number)
        return step.number

    @rule(target=pictures, parent=pictures, fails=st.booleans())
    def edit(self, parent, fails):
        (step,) = self.sessions.begin(self.mine, parent, {})
        if fails:
            self.sessions.end(self.mine, step.number, StepState.CANCELLED)
            return multiple()
        self.sessions.done(self.mine, step.number, {})
        self.parents[step.number] = parent
        self.touch(step.number)
        if self.current == parent:
            self.current = step.number
        return step.number

    @rule(number=pictures)
    def show(self, number):
        self.sessions.show(self.mine, number)
        self.see(number)

    @rule()
    def undo(self):
        found = self.sessions.undo(self.mine)
        wanted = None if self.current is None else self.parents[self.current]
        assert (found and found.number) == wanted
        if wanted is not None:
            self.see(wanted)

    @rule()
    def redo(self):
        found = self.sessions.redo(self.mine)
        children = [each for each in self.shown if self.parents[each] == self.current and self.current is not None]
        assert (found and found.number) == (children[-1] if children else None)
        if children:
            self.see(children[-1])

    @invariant()
    def the_same_step_is_shown(self):
        found = self.sessions.current(self.mine)
        assert (found and found.number) == self.current

    def teardown(self) -> None:
        self.sessions.close()


TestEditing = Editing.TestCase

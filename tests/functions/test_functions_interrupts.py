"""Ctrl-C (`functions.interrupts`): at once in the user's code and in waits, after the work in code of the session."""

import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from toprope.functions import interrupts

SESSION = Path(interrupts.__file__).with_name("session_part.py")
"""A file that would be the session's; what is compiled under its name counts as the session's code."""

WORK = """
def work(interrupt, seconds, done):
    interrupt()
    until = now() + seconds
    while now() < until:
        pass
    done.append("state")

def wait(interrupt, seconds, done):
    work(interrupt, seconds, done)
"""


def interrupt():
    signal.raise_signal(signal.SIGINT)


def compiled(file):
    space = {"now": time.monotonic}
    exec(compile(WORK, str(file), "exec"), space)
    return SimpleNamespace(**space)


@pytest.fixture
def guard():
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    made = interrupts.Guard()
    yield made
    made.remove()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def work_and_rest(done):
    compiled(SESSION).work(interrupt, 0.05, done)
    time.sleep(1)  # in the user's code


def test_the_session_finishes_its_work_before_it_is_interrupted(guard):
    done = []
    with pytest.raises(KeyboardInterrupt):
        work_and_rest(done)
    assert done == ["state"]


@pytest.mark.parametrize("file", [Path(os.__file__), Path(interrupts._PICKLING)])
def test_the_users_code_and_pickling_which_runs_it_are_interrupted_at_once(guard, file):
    done = []
    with pytest.raises(KeyboardInterrupt):
        compiled(file).work(interrupt, 0.05, done)
    assert done == []


def test_a_wait_of_the_session_is_interrupted_at_once(guard, monkeypatch):
    monkeypatch.setattr(interrupts, "_waits", set())
    part, done = compiled(SESSION), []
    interrupts.interruptible(part.work)
    with pytest.raises(KeyboardInterrupt):
        part.wait(interrupt, 0.05, done)
    assert done == []


def test_work_that_does_not_end_is_interrupted_after_a_limit(guard, monkeypatch):
    monkeypatch.setattr(interrupts, "_LONGEST", 0.1)
    done, begin = [], time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        compiled(SESSION).work(interrupt, 60, done)
    assert 0.1 <= time.monotonic() - begin < 30
    assert done == []


def test_a_handler_that_was_installed_since_stays(guard):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    guard.remove()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    signal.signal(signal.SIGINT, signal.default_int_handler)

"""The wait for torch's backward threads before Python ends: until they sleep, and no longer than its limit.

Holds src/toprope/sim/installation/at_exit.py.
"""

import ctypes
import threading

import pytest

from toprope.sim.installation import at_exit

_PR_SET_NAME = 15  # of prctl(2)


def ask(monkeypatch: pytest.MonkeyPatch, answers: list[list[str]]) -> list[list[str]]:
    """Wait while the states of the threads are these in turn, the last one for ever; return those that were left."""
    left = [*answers]
    monkeypatch.setattr(at_exit, "_states", lambda name: left.pop(0) if len(left) > 1 else left[0])
    at_exit._wait_for_backward_threads()
    return left


def test_it_waits_until_all_threads_sleep_twice_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    states = [["R", "S"], ["S", "S"], ["S", "R"], ["S", "S"], ["S", "S"], ["R", "R"]]
    assert ask(monkeypatch, states) == [["R", "R"]]


def test_a_process_without_such_threads_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(monkeypatch, [[], ["R"]]) == [["R"]]


def test_a_thread_that_never_sleeps_is_not_waited_for_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(at_exit, "_LIMIT", 0.02)
    assert ask(monkeypatch, [["R"]]) == [["R"]]


def test_threads_are_found_by_the_beginning_of_their_name() -> None:
    named, end = threading.Event(), threading.Event()

    def run() -> None:
        ctypes.CDLL(None).prctl(_PR_SET_NAME, b"pt_a (test) 1", 0, 0, 0)
        named.set()
        end.wait()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert named.wait(60)
        assert len(at_exit._states("pt_a (test)")) == 1
        assert at_exit._states("pt_a (other)") == []
    finally:
        end.set()
        thread.join()

"""The end of a session closes the sockets of its workers. Each test has a session of its own."""

import os
import signal
import threading

import pytest

from functions_faults import slow, within
from toprope import functions as yr

pytestmark = [pytest.mark.native, pytest.mark.process]


def test_the_socket_of_a_worker_lost_just_before_the_end_was_left_open(monkeypatch):
    """The news of its exit was awaited, and the thread that would have heard it was gone."""
    yr.init(yr.Config(num_cpus=4))
    try:
        yr.get(slow.invoke(0), timeout=60)
        processes = yr.context.backend().reactor
        worker = next(each for each in processes._all.values() if each.pid)
        monkeypatch.setattr("toprope.functions.local.reactor.EXIT_REPORT", 60)
        monkeypatch.setattr(processes, "_ended", lambda process: None)
        os.kill(worker.pid, signal.SIGKILL)
        within(60, lambda: worker.closed, "the end of the socket was not seen")
        assert worker.channel.socket.fileno() != -1
    finally:
        yr.finalize()
    assert worker.channel.socket.fileno() == -1


def test_the_socket_of_a_worker_whose_end_could_not_be_dealt_with_was_left_open(monkeypatch):
    """The forkserver removes the folder while the listening thread looks for files of an ended worker in it."""
    yr.init(yr.Config(num_cpus=4))
    try:
        yr.get(slow.invoke(0), timeout=60)
        processes = yr.context.backend().reactor
        workers = list(processes._all.values())

        def removed(number):
            if threading.current_thread() is processes._listener:
                raise FileNotFoundError(number)

        monkeypatch.setattr(processes, "_sweep", removed)
    finally:
        yr.finalize()
    assert workers
    assert [worker.channel.socket.fileno() for worker in workers] == [-1] * len(workers)

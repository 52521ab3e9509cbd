"""What can go wrong in a session, each as one function that does it and says what must hold then. Not a test.

A fault gets the random numbers of its round and a folder to write to. Whatever it does, nobody waits longer than told,
no result is lost or doubled, and what its instances held is free a moment later.
"""

import contextlib
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from toprope import functions as yr

GONE = 1007
SOON = 5.0
"""Seconds within which the death of a worker must be known, on a machine with much else to do."""


def options(cards: float = 1, grace: float = 0.1, **values):
    asked = {"NPU/.+/count": cards} if cards else {}
    extensions = {"GRACEFUL_SHUTDOWN_TIME": str(grace)}
    return yr.InvokeOptions(custom_resources=asked, custom_extensions=extensions, **values)


@yr.instance
class Victim:
    def __init__(self, log=None, seconds=0.0):
        self.count = 0
        if log is not None:
            Path(log).write_text(str(os.getpid()))
        time.sleep(seconds)

    def pid(self):
        return os.getpid()

    def note(self, log, number):
        """Written before the result is sent: what has run is in the log."""
        with open(log, "a") as file:
            file.write(f"{number}\n")
        self.count += 1
        return number

    def sleep(self, seconds):
        time.sleep(seconds)
        return seconds

    def double(self, array):
        return array * 2

    def lock(self):
        return threading.Lock()

    def raise_lock(self):
        raise Awkward(threading.Lock())

    def explosive(self):
        return Explosive()

    def close_sockets(self):
        os.closerange(3, 4096)
        time.sleep(60)

    def wait_for_another(self, go):
        return yr.get(waits.invoke(go))

    def leave_children(self):
        """A child in this session, one in its own, and a fork of a fork in its own, without a new program."""
        found = [subprocess.Popen(["sleep", "1000"], start_new_session=apart).pid for apart in (False, True)]
        ours, theirs = os.pipe()
        if not os.fork():
            os.setsid()
            if not os.fork():
                os.write(theirs, str(os.getpid()).encode())
                time.sleep(1000)
            os._exit(0)
        os.wait()
        return [*found, int(os.read(ours, 20))]


class Awkward(Exception):
    pass


class Explosive:
    def __reduce__(self):
        return _explode, ()


def _explode():
    raise RuntimeError("this was not to be unpickled")


@yr.invoke
def slow(seconds):
    time.sleep(seconds)
    return seconds


@yr.invoke
def waits(go):
    while not Path(go).exists():
        time.sleep(0.005)


@yr.invoke
def note(log, number, seconds):
    with open(log, "a") as file:
        file.write(f"{number} {os.getpid()}\n")
    time.sleep(seconds)
    return number


def dies(ref, text="SIGKILL"):
    """The call of a reference fails soon, for its worker is gone."""
    begin = time.monotonic()
    with pytest.raises(yr.YRError, match=text) as caught:
        yr.get(ref, timeout=60)
    assert caught.value.code == GONE
    assert time.monotonic() - begin < SOON


def lost(error, may_be=True):
    """A call whose worker is gone, where that may be."""
    assert may_be
    assert error.code == GONE


def within(seconds, holds, what):
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, what
        time.sleep(0.005)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def lines(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


@contextlib.contextmanager
def ends(instance, within_seconds=30.0):
    """The instance of a fault, ended in time whatever state it is in."""
    yield
    begin = time.monotonic()
    instance.terminate()
    assert time.monotonic() - begin < within_seconds
    within(60, lambda: not instance.is_activate(), "a terminated instance is still there")


# The faults


def killed_in_a_call(random, folder):
    """Results that were sent before the end arrive, those of later calls are errors, and no call runs twice."""
    log = folder / "calls"
    victim = Victim.options(options()).invoke()
    pid = yr.get(victim.pid.invoke(), timeout=30)
    refs = [victim.note.invoke(str(log), number) for number in range(random.choice([3, 150, 400]))]
    time.sleep(random.random() * 0.02)
    os.kill(pid, signal.SIGKILL)
    outcomes = []
    for ref in refs:
        try:
            outcomes.append(yr.get(ref, timeout=SOON))
        except yr.YRError as error:
            lost(error)
            outcomes.append(None)
    arrived = [each for each in outcomes if each is not None]
    assert outcomes == arrived + [None] * (len(refs) - len(arrived))
    ran = [int(each) for each in lines(log)]
    assert ran == list(range(len(ran)))
    assert len(arrived) <= len(ran) <= len(arrived) + 1
    dies(victim.pid.invoke())


def killed_in_creation(random, folder):
    log = folder / "pid"
    victim = Victim.options(options()).invoke(str(log), 30)
    ref = victim.pid.invoke()
    within(60, lambda: lines(log), "the constructor does not begin")
    time.sleep(random.random() * 0.01)
    os.kill(int(lines(log)[0]), signal.SIGKILL)
    dies(ref)


def killed_in_a_transfer(random, folder):
    """A large argument and a large result are on their way: what arrives is whole."""
    victim = Victim.options(options()).invoke()
    pid = yr.get(victim.pid.invoke(), timeout=30)
    array = np.arange(2_000_000)
    refs = [victim.double.invoke(array) for _ in range(2)]
    time.sleep(random.random() * 0.08)
    os.kill(pid, signal.SIGKILL)
    for ref in refs:
        try:
            assert (yr.get(ref, timeout=SOON) == 2 * array).all()
        except yr.YRError as error:
            lost(error)
    dies(victim.pid.invoke())


def killed_while_it_waits(random, folder):
    """A worker whose cores others have meanwhile: they are counted once."""
    victim = Victim.options(options()).invoke()
    pid = yr.get(victim.pid.invoke(), timeout=30)
    ref = victim.wait_for_another.invoke(str(folder / "go"))
    time.sleep(random.random() * 0.1)
    os.kill(pid, signal.SIGKILL)
    dies(ref)
    (folder / "go").touch()


def functions_killed(random, folder):
    """Calls without retries run once at most, and say so when they are lost; with retries all have a result."""
    log = folder / f"functions{random.random()}"
    tries = random.choice([0, 3])
    yr_note = note.options(yr.InvokeOptions(retry_times=tries, max_instances=2))
    refs = [yr_note.invoke(str(log), number, 0.01) for number in range(12)]
    within(60, lambda: lines(log), "no function begins")
    time.sleep(random.random() * 0.04)
    last = lines(log)[-1].split()
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(last[1]), signal.SIGKILL)
    outcomes = []
    for number, ref in enumerate(refs):
        try:
            outcomes.append(yr.get(ref, timeout=30))
            assert outcomes[-1] == number
        except yr.YRError as error:
            lost(error, tries == 0)
            outcomes.append(None)
    ran = [int(each.split()[0]) for each in lines(log)]
    assert outcomes.count(None) <= 1
    assert set(ran) >= {number for number in outcomes if number is not None}
    assert len(ran) - len(set(ran)) <= (1 if tries else 0)


def not_to_be_pickled(random, folder):
    """Results and errors that cannot be sent are errors of their call, and of nothing else."""
    victim = Victim.options(options()).invoke()
    refs = {each: getattr(victim, each).invoke() for each in ("lock", "raise_lock", "explosive", "pid")}
    with pytest.raises(TypeError, match="cannot pickle"):
        yr.get(refs["lock"], timeout=30)
    with pytest.raises(RuntimeError, match="Awkward"):
        yr.get(refs["raise_lock"], timeout=30)
    with pytest.raises(RuntimeError, match="not to be unpickled"):
        yr.get(refs["explosive"], timeout=30)
    with ends(victim):
        assert lives(yr.get(refs["pid"], timeout=30))


def constructor_hangs(random, folder):
    victim = Victim.options(options(grace=random.choice([0, 0.1]))).invoke(None, 60)
    ref = victim.pid.invoke()
    begin = time.monotonic()
    with pytest.raises(yr.YRTimeoutError, match="its constructor runs"):
        yr.get(ref, timeout=0.1)
    assert time.monotonic() - begin < 30  # the constructor takes 60
    with ends(victim):
        pass
    with pytest.raises(yr.YRError, match="terminated"):
        yr.get(ref, timeout=SOON)


def socket_closed(random, folder):
    victim = Victim.options(options()).invoke()
    pid = yr.get(victim.pid.invoke(), timeout=30)
    dies(victim.close_sockets.invoke(), "exited")
    within(SOON, lambda: not lives(pid), "a worker without a socket lives on")


def stopped(random, folder):
    """A worker that does nothing any more: who waits is told, and it can be ended."""
    victim = Victim.options(options()).invoke()
    pid = yr.get(victim.pid.invoke(), timeout=30)
    sent = [victim.double.invoke(np.ones(20_000)) for _ in range(random.choice([0, 30]))]
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(yr.YRTimeoutError, match=r"\(runs\) had not answered"):
        yr.get(victim.sleep.invoke(0), timeout=0.1)
    with ends(victim):
        pass
    within(SOON, lambda: not lives(pid), "a stopped worker lives on")
    for ref in sent:
        with contextlib.suppress(yr.YRError):
            assert yr.get(ref, timeout=SOON)[0] == 2


def children_left(random, folder):
    """What a worker has started ends with it, however it ends."""
    victim = Victim.options(options()).invoke()
    pid = yr.get(victim.pid.invoke(), timeout=30)
    children = yr.get(victim.leave_children.invoke(), timeout=30)
    assert all(map(lives, children))
    how = random.choice(["killed", "ended", "terminated"])
    if how == "terminated":
        with ends(victim):
            pass
    else:
        os.kill(pid, signal.SIGKILL if how == "killed" else signal.SIGTERM)
    within(SOON, lambda: not any(map(lives, children)), f"a worker was {how} and its children live on")


FAULTS = [
    killed_in_a_call, killed_in_creation, killed_in_a_transfer, killed_while_it_waits, functions_killed,
    not_to_be_pickled, constructor_hangs, socket_closed, stopped, children_left,
]  # fmt: skip

"""Faults of workers and programs: no wait exceeds its limit, no result is lost or doubled, and all is released.

Ten seeded rounds in `make test`, two hundred in `make soak`: each with faults of workers in one session, at other
moments, and with a program of its own, to which something happens while it runs and again at its end.
"""

import contextlib
import gc
import os
import random
import resource
import select
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from functions_faults import FAULTS, lives, slow, within
from functions_session import free, session
from toprope import functions as yr
from toprope.functions.local import folder as folders

pytestmark = [pytest.mark.native, pytest.mark.process]

HELPERS = Path(__file__).resolve().parents[1] / "helpers"
SOAK = os.environ.get("TOPROPE_SOAK") == "1"
ROUNDS = range(200 if SOAK else 10)
AT_ONCE = len(FAULTS) if SOAK else 3
IN_A_PROGRAM = ("interrupted", "forkserver_killed", "full", "forked")
ENDS = ("finalized", "ended", "killed", "ctrl_c", "killed at any moment")
SMALL = 12 * 2**20
MARK = "TOPROPE_TEST_MARK"


@pytest.fixture(scope="module")
def _session():
    with session("910B4x2", recycle_time=0.2):
        yr.get(slow.invoke(0), timeout=60)
        yield


def settled(after):
    """Nothing is held: no card, no block of shared memory, no file of a worker that is gone."""
    gc.collect()
    backend = yr.context.backend()

    def strangers():
        alive = {f"w{number}" for number in backend.reactor._all}
        return {path.name for path in backend.folder.glob("w*") if path.name.partition("-")[0] not in alive}

    within(60, lambda: all(each["capacity"] == each["allocatable"] for each in yr.resources()), f"held after {after}")
    assert free() == 2
    within(60, lambda: backend.store.used == 0, f"a block of the driver is held after {after}")
    within(60, lambda: not strangers(), f"memory of a dead worker is held after {after}")


class _Late:
    """A register that takes so long that a worker is up before, and the listening thread is told at once."""

    def __init__(self, epoll):
        self._epoll = epoll

    def __getattr__(self, name):
        return getattr(self._epoll, name)

    def register(self, channel, events):
        up = select.poll()
        up.register(channel, select.POLLIN)
        assert up.poll(20_000)
        self._epoll.register(channel, events)
        time.sleep(0.2)


@yr.instance
class Up:
    def answer(self):
        return 42


@pytest.mark.slow
@pytest.mark.usefixtures("_session")
def test_a_worker_that_is_up_before_it_is_listened_to_is_heard(monkeypatch):
    """On a loaded machine the one message by which a worker says so was lost, and its instance never there."""
    processes = yr.context.backend().reactor
    with monkeypatch.context() as patch:  # without the session's lock, which keeps the listening thread waiting
        patch.setattr(processes, "_epoll", _Late(processes._epoll))
        processes._idle.append(processes._new())
    ups = [Up.invoke() for _ in range(len(processes._idle))]
    assert [yr.get(up.answer.invoke(), 60) for up in ups] == [42] * len(ups)
    for up in ups:
        up.terminate()
    settled("late listening")


@pytest.mark.slow
@pytest.mark.usefixtures("_session")
@pytest.mark.parametrize("round", ROUNDS)
def test_faults_of_workers(round, tmp_path):
    numbers = random.Random(round)
    order = numbers.sample(FAULTS, len(FAULTS))
    first = AT_ONCE * round % len(FAULTS)
    for place in range(AT_ONCE):
        fault = FAULTS[(first + place) % len(FAULTS)] if not SOAK else order[place]
        folder = tmp_path / fault.__name__
        folder.mkdir()
        fault(numbers, folder)
        settled(fault.__name__)


@pytest.fixture
def small_store(tmp_path):
    """A folder that takes little: a file system of its own where that may be mounted, else files are kept small."""
    store = tmp_path / "store"
    store.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SMALL},mode=0700", "tmpfs", str(store)]
    mounted = not subprocess.run(mount, capture_output=True).returncode
    yield store, mounted
    if mounted:
        subprocess.run(["umount", "-l", str(store)], check=True)


@pytest.fixture
def quick_workers(tmp_path):
    """A folder with a torch that is imported at once."""
    (tmp_path / "quick").mkdir()
    (tmp_path / "quick" / "torch.py").touch()
    return tmp_path / "quick"


def before_all(folder):
    """The search path of a program, with a folder before what is there already."""
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))


@pytest.mark.slow
@pytest.mark.parametrize("round", ROUNDS)
def test_faults_of_programs(round, small_store, quick_workers, monkeypatch):
    numbers = random.Random(round)
    (store, mounted), mark = small_store, uuid.uuid4().hex
    fault, end = IN_A_PROGRAM[round % len(IN_A_PROGRAM)], ENDS[round % len(ENDS)]
    steps = [fault, "killed" if end == "killed at any moment" else end]
    environment = {**os.environ, "TOPROPE_SIM": "910B4x2", "TOPROPE_OBJECT_STORE": str(store), MARK: mark,
                   "PYTHONPATH": before_all(quick_workers), "XDG_RUNTIME_DIR": str(quick_workers)}  # fmt: skip
    limit = None if mounted else lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (SMALL, SMALL))
    program = subprocess.Popen(
        [sys.executable, HELPERS / "functions_driver.py", str(round), *steps], env=environment, preexec_fn=limit,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    forks: set[int] = set()
    try:
        if end == "killed at any moment":
            assert program.stdout.readline() == "begin\n"
            time.sleep(numbers.random() * 1.5)
            program.kill()
            program.wait(10)
            if (quick_workers / "without a forkserver").exists():
                kill(of(mark))
        elif end == "killed":
            said = [program.stdout.readline() for _ in range(3)]
            assert said[2].startswith("fork "), (said, program.stderr.read())
            forks.add(int(said[2].split()[1]))
            program.kill()
        else:
            said, errors = program.communicate(timeout=60)
            expected = -signal.SIGINT if end == "ctrl_c" else 0
            assert program.returncode == expected, (said, errors)
            assert f"{fault} went well" in said
            assert errors.count("Traceback") == (end == "ctrl_c"), errors
        program.wait(10)
        within(60, lambda: not of(mark) - forks, f"processes live on: {of(mark)}")
        monkeypatch.setattr(folders, "_FRESH", -1)

        def is_empty():
            if end == "killed at any moment":
                # between the making of the folder and the start of the forkserver nobody is there who could remove it
                folders._sweep(store)
            return not list(store.iterdir())

        within(60, is_empty, "the folder of the session is left")
    finally:
        kill(of(mark) | forks)
        program.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("part", ["no_more_processes", "refused_at_once"])
def test_a_worker_that_the_system_refuses(small_store, quick_workers, part):
    """And what the forkserver has made while it imported is not taken down by each worker that ends."""
    (quick_workers / "torch.py").write_text("""
import errno, os, sys, weakref
if "forkserver" in sys.argv[0]:
    weakref.finalize(sys, open, os.environ["FINALIZED"], "w")
    fork, left = os.fork, [1, 2, 3]
    def some():
        if not left:
            raise OSError(errno.EAGAIN, "no more processes")
        left.pop()
        return fork()
    os.fork = some
""")
    finalized = quick_workers / "finalized"
    environment = {**os.environ, "TOPROPE_SIM": "910B4x2", "TOPROPE_OBJECT_STORE": str(small_store[0]),
                   "FINALIZED": str(finalized), "PYTHONPATH": before_all(quick_workers)}  # fmt: skip
    program = [sys.executable, HELPERS / "functions_driver.py", "0", part]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert not finalized.exists()


def kill(pids: set[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(pid, signal.SIGKILL)


def of(mark: str) -> set[int]:
    """The living processes that have this mark."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{MARK}={mark}".encode() in path.read_bytes().split(b"\0") and lives(int(path.parent.name)):
                found.add(int(path.parent.name))
        except OSError:
            pass
    return found

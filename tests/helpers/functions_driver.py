"""A program with a session, to which things are done that end a program or its session. Not a test.

Run as `functions_driver.py seed fault... ending`: says what it does, one line each, and whether it went as it must.
"""

import contextlib
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from functions_faults import Victim, dies, lives, options, slow, within
from toprope import functions as yr
from toprope.functions.local.forkserver_client import Forkserver

NUMBERS = random.Random(sys.argv[1])
MB = 2**20


def say(text):
    print(text, flush=True)


def new_victim():
    victim = Victim.options(options(grace=0.2)).invoke()
    yr.get(victim.pid.invoke(), timeout=60)
    return victim


def forkserver():
    return yr.context.backend().reactor._forkserver._process.pid


# In the session


def interrupted():
    """Ctrl-C in the middle of calls and gets: raised at once, and nothing that was asked for is lost."""
    victim = new_victim()
    for _ in range(5):
        refs = []
        shot = threading.Timer(NUMBERS.random() * 0.004, os.kill, (os.getpid(), signal.SIGINT))
        try:
            shot.start()
            while True:
                refs.append(victim.sleep.invoke(0) if len(refs) % 50 else slow.invoke(0))
                if len(refs) % 5 == 0:
                    yr.get(refs[-3], timeout=30)
        except KeyboardInterrupt:
            pass
        shot.join()
        assert yr.get(refs, timeout=30) == [0] * len(refs)
    for wait in (yr.get, yr.wait):
        begin = time.monotonic()
        with contextlib.suppress(KeyboardInterrupt):
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
            wait(victim.sleep.invoke(60), timeout=60)
        assert time.monotonic() - begin < 10
    victim.terminate()


def forkserver_killed():
    """All workers are gone with it, and others come."""
    victim = new_victim()
    children = yr.get(victim.leave_children.invoke(), timeout=30)
    waiting = [victim.sleep.invoke(60), slow.invoke(60)]
    within(60, slow_runs, "the function does not begin")
    # who is killed before all of them are gone leaves processes: nobody is there who could end them
    at_it = Path(os.environ["XDG_RUNTIME_DIR"], "without a forkserver")
    at_it.touch()
    os.kill(forkserver(), signal.SIGKILL)
    for ref in waiting:
        dies(ref)
    # a fork of a fork without a program of its own cannot be told from others
    within(60, lambda: not any(map(lives, children[:2])), "children of workers live on")
    if lives(children[2]):
        os.kill(children[2], signal.SIGKILL)
    at_it.unlink()
    within(60, lambda: yr.resources()[0]["allocatable"] == yr.resources()[0]["capacity"], "something is held")
    again = new_victim()
    assert yr.get(again.double.invoke(np.ones(100_000)), timeout=30).sum() == 200_000
    assert yr.get(slow.invoke(0), timeout=30) == 0
    again.terminate()


def slow_runs():
    pools = yr.context.backend().pools._pools.values()
    return any(call.kind == 4 for pool in pools for process in pool.workers for call in process.pending.values())


def full():
    """What the store cannot take is an error of its call alone, and there is room again when things are let go of."""
    victim = new_victim()
    for large in (lambda: yr.put(np.ones(100 * MB, "u1")), lambda: victim.double.invoke(np.ones(100 * MB, "u1"))):
        with pytest.raises(yr.YRRuntimeError, match="TOPROPE_OBJECT_STORE") as caught:
            large()
        assert caught.value.code == 4202
    codes = set()
    for count in range(12):
        held = []
        try:
            held += [yr.put(np.ones(MB, "u1")) for _ in range(count)]
            assert yr.get(victim.double.invoke(held[0] if held else np.ones(MB, "u1")), timeout=30).sum() == 2 * MB
        except yr.YRRuntimeError as error:
            codes.add(error.code)
    del held
    assert codes == {4202}
    within(60, lambda: yr.context.backend().store.used == 0, "the store does not get empty")
    assert yr.get(victim.sleep.invoke(0), timeout=30) == 0
    victim.terminate()


def forked():
    """A fork of the program has no session, and takes nothing from the one of the program."""
    victim = new_victim()
    refs = [victim.sleep.invoke(0.05) for _ in range(3)]
    child = os.fork()
    if not child:
        status = 1
        try:
            yr.get(victim.pid.invoke(), timeout=30)
        except yr.YRRuntimeError as error:
            status = 0 if "yr.init" in str(error) else 2
            yr.init(yr.Config(num_cpus=1))
            status += yr.get(slow.invoke(0), timeout=30)
            yr.finalize()
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert yr.get(refs, timeout=30) == [0.05] * 3
    victim.terminate()


def no_more_processes():
    """The system refuses a fourth worker: who needs it is told why, and nothing is held for it."""
    victims = [new_victim(), new_victim()]
    for victim in victims:
        victim.terminate()
    new_victim().terminate()
    dies(Victim.options(options()).invoke().pid.invoke(), "could not be started: no more processes")
    within(60, lambda: yr.resources()[0]["allocatable"] == yr.resources()[0]["capacity"], "something is held")


def refused_at_once():
    """The news of a refusal was lost if it came before the thread that asked went on."""
    ask = Forkserver.ask

    def ask_and_rest(*arguments):
        ask(*arguments)
        time.sleep(0.5)

    Forkserver.ask = ask_and_rest
    no_more_processes()


# Ends


def busy():
    """Two cards held, calls in both, and threads that wait for them."""
    victims = [new_victim(), new_victim()]
    victims[0].leave_children.invoke()
    refs = [victim.sleep.invoke(1000) for victim in victims] + [slow.invoke(1000)]
    outcomes = []

    def wait(ref):
        try:
            outcomes.append(yr.get(ref, timeout=-1))
        except yr.YRError as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=wait, args=(ref,)) for ref in refs]
    return victims, threads, outcomes


def finalized():
    _, threads, outcomes = busy()
    for thread in threads:
        thread.start()
    time.sleep(NUMBERS.random() * 0.1)
    begin = time.monotonic()
    yr.finalize()
    assert time.monotonic() - begin < 5
    for thread in threads:
        thread.join(60)
    assert len(outcomes) == 3
    assert all("already finalized" in each for each in outcomes), outcomes


def ended():
    """The end of the program without yr.finalize."""
    busy()


def killed():
    """Waits to be killed; a fork of it that holds all its descriptors lives on."""
    busy()
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(0)
    say(f"fork {child}")
    time.sleep(60)


def ctrl_c():
    victims, _, _ = busy()
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    yr.get(victims[0].sleep.invoke(1000), timeout=60)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    say("begin")
    yr.init(yr.Config(num_cpus=16, recycle_time=0.2))
    for name in sys.argv[2:]:
        globals()[name]()
        say(f"{name} went well")

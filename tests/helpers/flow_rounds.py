"""Seeded rounds of faults in a graph, and drivers that are interrupted: a program of its own. Not a test.

An interrupt that comes too late for what it was meant for would end the tests, so it comes here.
"""

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from flow_graphs import chain, fetch, running, wrap
from functions_session import session
from toprope.flow.exceptions import FLOW_FUNC_FAILED, MODEL_EXECUTE_TIMEOUT
from toprope.flow.stage.spec import EMPTY, EOS, Head, Message


def plain(x):
    return x


def fails_each_tenth(x):
    if x is not None and x % 10 == 3:
        raise KeyError(f"input {x}")
    return None if x is None else x + 1


def hangs_at(number):
    def step(x):
        if x == number:
            time.sleep(3600)
        return None if x is None else x + 1

    return step


def takes(seconds):
    def step(x):
        time.sleep(seconds)
        return x

    return step


def interrupted(call: Callable[[], object], delay: float) -> bool:
    """Call something while Ctrl-C comes; whether it was done before. The interrupt has come when this returns."""
    timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT))
    done = False
    try:
        timer.start()  # which waits for the thread, and may be interrupted already
        call()
        done = True
        while True:
            time.sleep(1)
    except KeyboardInterrupt:
        return done


def feed_all(runner, messages, at, kill, interrupts):
    """Feed them; kills a stage at a place, is interrupted at others, in the middle of whatever it does."""
    for number, message in enumerate(messages, 1):
        if number in interrupts:
            interrupted(lambda message=message: runner.feed({0: message}, 60_000), interrupts[number])
        if not message.head.transaction_id:  # an interrupt came first: it was not fed
            assert runner.feed({0: message}, 60_000) == 0
        if number == at:
            kill()


def one_round(seed: int, death: str = "SIGKILL") -> str:
    """An exception in every tenth input, a stage killed, one that hangs, EOS in the middle, the driver interrupted.

    Args:
        seed: of what happens in the round.
        death: text in the error of an input whose stage was killed.
    """
    chosen = random.Random(seed)
    count = chosen.randrange(20, 60)
    victim = chosen.choice([None, "s1", "s2", "s3"])
    hang = chosen.choice([None, 7]) if victim is None else None
    end, killed_at = chosen.randrange(1, count), chosen.randrange(1, count)
    colocate = seed % 5 == 4
    depth = chosen.choice([2, 128])
    interrupts = {chosen.randrange(1, count + 1): chosen.random() * 0.01 for _ in range(seed % 3)}
    told = f"seed {seed}: victim {victim}, hang {hang}, colocate {colocate}, depth {depth}, interrupts {interrupts}"
    steps = (takes(0.001), hangs_at(hang) if hang else fails_each_tenth, takes(0.001))
    graph = chain(*steps, _flow_attr_depth=depth)
    names = {f"s{number + 1}": each.name for number, each in enumerate(graph.nodes)}
    messages = [
        Message(EMPTY, None, Head(flags=EOS)) if number == end else Message(*wrap(number), Head())
        for number in range(1, count + 1)
    ]
    found = []

    def fetch_all():
        while len(found) < count:
            got = runner.fetch(timeout_ms=60_000)
            if not got.messages:
                found.append(got)
                return
            found.append((got.head.transaction_id, got.messages[0].payload, got.code))

    with running(graph, deadline_ms=5000 if hang else 0, colocate=colocate) as runner:
        pid = runner.pids()[names[victim]] if victim else 0
        fetcher = threading.Thread(target=fetch_all)
        fetcher.start()
        at = killed_at if victim else 0
        feed_all(runner, messages, at, lambda: os.kill(pid, signal.SIGKILL), interrupts)
        fetcher.join(90)
        how_far = len(found), found[-1:], runner.restarts, runner.pids(), runner.metrics()
        assert not fetcher.is_alive(), (told, how_far)
        assert len(found) == count, (told, how_far)  # what was fetched last has no messages
        more = runner.fetch(timeout_ms=50)
        assert more.code == MODEL_EXECUTE_TIMEOUT, (told, more)
    ids = [each[0] for each in found]
    assert ids == list(range(1, count + 1)), (told, found)
    lost = 0
    for id, value, code in found:
        because = (told, id, value, code)
        if id == end:
            assert (value, code) == (None, 0) or victim or (hang and colocate), because
        elif hang is None and id % 10 == 3:
            assert code == FLOW_FUNC_FAILED, because
        elif hang == id:
            assert code == MODEL_EXECUTE_TIMEOUT, because
            assert "deadline" in str(value.error), because
        elif code:  # stages of one process go together, with what is between them
            assert victim or (hang and colocate), because
            assert (death if victim else "deadline") in str(value.error), because
            lost += 1
        else:
            assert value == id + 1, because
    assert not victim or colocate or lost <= 1, (told, lost)
    return told


def ctrl_c_in_fetch(folder: Path) -> str:
    """What was on its way is fetched afterwards."""
    go = folder / "go"

    def gated(x):
        while not go.exists():
            time.sleep(0.005)
        return x + 1

    with running(chain(gated)) as runner:
        assert runner.feed({0: Message(*wrap(1), Head())}, 10_000) == 0
        assert not interrupted(lambda: runner.fetch(timeout_ms=60_000), 0.1)
        assert not interrupted(lambda: runner.drain(60), 0.1)
        go.touch()
        assert fetch(runner) == (2, 0)
    return "Ctrl-C in fetch and drain"


def ctrl_c_while_feed_waits(folder: Path) -> str:
    """An input that Ctrl-C came before was not fed; those before it are there."""
    go = folder / "go2"

    def gated(x):
        while not go.exists():
            time.sleep(0.005)
        return x

    with running(chain(gated, _flow_attr_depth=2)) as runner:
        fed, number = 0, 0
        while runner.feed({0: Message(*wrap(number), Head())}, 300) == 0:
            fed, number = fed + 1, number + 1
        message = Message(*wrap(number), Head())
        assert not interrupted(lambda: runner.feed({0: message}, 60_000), 0.1)
        assert not message.head.transaction_id
        go.touch()
        assert runner.feed({0: message}, 60_000) == 0
        assert [fetch(runner) for _ in range(fed + 1)] == [(number, 0) for number in range(fed + 1)]
    return "Ctrl-C in feed"


def main(first: int, last: int, folder: str, address: str = "") -> None:
    """Rounds of these seeds; without any, the interrupts alone. In a session on Ray where its address is given."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job has it ignored
    on_ray = {"server_address": address} if address else {}
    death = "has ended while it had this input" if on_ray else "SIGKILL"  # Ray does not say how a process ended
    with session("910B4x2", **on_ray):
        for seed in range(first, last):
            print(one_round(seed, death), flush=True)
        for check in (ctrl_c_in_fetch, ctrl_c_while_feed_waits):
            print(check(Path(folder)), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])

"""Graphs in which something goes wrong: the others arrive, in order, none twice, and nothing hangs."""

import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from flow_graphs import Point, chain, data, feed, fetch, node, running
from functions_session import session
from toprope.flow.exceptions import FAILED, FLOW_FUNC_FAILED, MODEL_EXECUTE_TIMEOUT, QUEUE_FULL, DfException
from toprope.flow.graph import plan
from toprope.flow.stage_spec import EMPTY, EOS, Head, Message

SOAK = os.environ.get("TOPROPE_SOAK") == "1"
ROUNDS = 200 if SOAK else 10


@pytest.fixture(scope="module", autouse=True)
def one_session():
    with session("910B4x2"):
        yield


def results(runner, count, timeout=30_000):
    """Of so many fetches: number of the input, value and code."""
    found = []
    for _ in range(count):
        got = runner.fetch(timeout_ms=timeout)
        assert got.messages, (got, len(found))
        found.append((got.head.transaction_id, got.messages[0].payload, got.code))
    return found


def slow_plus(amount, slow=0.001):
    def plus(x):
        time.sleep(slow)
        return None if x is None else x + amount

    return plus


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


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(1)


def test_an_input_that_fails_fails_alone_with_the_users_own_exception():
    with running(chain(slow_plus(1), lambda x: 1 // (x - 4), slow_plus(0))) as runner:
        for value in range(6):
            assert feed(runner, value) == 0
        found = [runner.fetch(timeout_ms=20_000) for _ in range(6)]
    assert [each.code for each in found] == [0, 0, 0, FLOW_FUNC_FAILED, 0, 0]
    (failure,) = found[3].errors
    assert isinstance(failure.error, ZeroDivisionError)
    assert "1 // (x - 4)" in failure.traceback or "ZeroDivisionError" in failure.traceback
    assert failure.stage == "s2" or failure.stage.startswith("s2_")


def test_seeded_rounds_of_faults(capfd):
    """An exception in every tenth input, a stage killed, one that hangs, EOS in the middle, the driver interrupted."""
    for seed in range(ROUNDS):
        chosen = random.Random(seed)
        count = chosen.randrange(20, 60)
        kill = chosen.choice([None, "s1", "s2", "s3"])
        hang = chosen.choice([None, 7]) if kill is None else None
        end = chosen.randrange(1, count)
        killed_at = chosen.randrange(1, count)
        graph = chain(slow_plus(0), hangs_at(hang) if hang else fails_each_tenth, slow_plus(0))
        places = {each.name: f"s{number + 1}" for number, each in enumerate(graph.nodes)}
        colocate = seed % 5 == 4
        with running(graph, deadline_ms=400 if hang else 0, colocate=colocate) as runner:
            pids = {places[name]: pid for name, pid in runner.pids().items()}
            found = []

            def fetch_all(runner=runner, found=found, count=count):
                found += results(runner, count)

            fetcher = threading.Thread(target=fetch_all)
            fetcher.start()
            for number in range(1, count + 1):
                if number == end:
                    assert runner.feed({0: Message(EMPTY, None, Head(flags=EOS))}, 10_000) == 0
                else:
                    assert feed(runner, number) == 0
                if kill and number == killed_at:
                    os.kill(pids[kill], signal.SIGKILL)
                if SOAK and number % 17 == 5:
                    with pytest.raises(KeyboardInterrupt):
                        interrupt()
            fetcher.join(60)
            assert not fetcher.is_alive(), (seed, kill, hang, len(found), runner.metrics())
            more = runner.fetch(timeout_ms=50)
            assert more.code == MODEL_EXECUTE_TIMEOUT, (seed, more)
        ids = [id for id, _, _ in found]
        assert ids == list(range(1, count + 1)), (seed, kill, colocate, ids)
        lost = 0
        for id, value, code in found:
            if id == end:
                assert (value, code) == (None, 0) or kill or (hang and colocate)
            elif hang is None and id % 10 == 3:
                assert code in (FLOW_FUNC_FAILED,), (seed, id, code)
            elif hang == id:
                assert code == MODEL_EXECUTE_TIMEOUT, (seed, id, code)
                assert "deadline" in str(value.error)
            elif code:  # stages of one process go together, with what is between them
                assert kill or (hang and colocate), (seed, id, value)
                assert ("SIGKILL" if kill else "deadline") in str(value.error)
                lost += 1
            else:
                assert value == id + 1
        if kill and not colocate:
            assert lost <= 1, (seed, kill, lost)


def test_a_stage_that_dies_too_often_breaks_the_graph_and_says_why():
    with running(chain(slow_plus(1, 0.01)), restarts=0) as runner:
        for value in range(5):
            assert feed(runner, value) == 0
        assert fetch(runner) == (1, 0)
        os.kill(next(iter(runner.pids().values())), signal.SIGKILL)
        codes = []
        while FAILED not in codes:
            codes.append(runner.fetch(timeout_ms=20_000).code)
        assert set(codes[:-1]) <= {0}
        assert "SIGKILL" in str(runner.error.error)
        assert feed(runner, 9) == FAILED


def test_a_killed_stage_behind_a_full_edge_lets_the_driver_go_on():
    with running(chain(slow_plus(1, 0.15), _flow_attr_depth=2)) as runner:
        codes = [feed(runner, value, timeout=50) for value in range(12)]
        assert QUEUE_FULL in codes
        fed = codes.count(0)
        os.kill(next(iter(runner.pids().values())), signal.SIGKILL)
        ids = [id for id, _, _ in results(runner, fed)]
        assert ids == list(range(1, fed + 1))
        assert runner.restarts == 1
        assert feed(runner, 99) == 0
        assert fetch(runner) == (100, 0)


def test_a_join_pairs_what_belongs_together_after_one_branch_was_killed():
    x = data("x")
    left, right = node(Point(slow_plus(0)), x, name="left"), node(Point(slow_plus(0, 0.003)), x, name="right")
    graph = plan([node(Point(lambda a, b: (a, b), inputs=2), left, right, name="join")])
    for victim in ("left", "right", "join"):
        name = next(each.name for each in graph.nodes if each.name.startswith(victim))
        with running(graph) as runner:
            for value in range(30):
                assert feed(runner, value) == 0
                if value == 10:
                    os.kill(runner.pids()[name], signal.SIGKILL)
            found = results(runner, 30)
        assert [id for id, _, _ in found] == list(range(1, 31)), victim
        assert sum(code != 0 for _, _, code in found) <= 2
        for id, value, code in found:
            assert code or value == (id - 1, id - 1)


@pytest.mark.soak  # an interrupt of the tests' own process, which a whole run is not to end by
def test_ctrl_c_in_fetch_loses_nothing():
    with running(chain(slow_plus(1, 0.2))) as runner:
        assert feed(runner, 1) == 0
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            runner.fetch(timeout_ms=20_000)
        assert fetch(runner) == (2, 0)


def test_a_graph_of_which_a_stage_cannot_start_says_why_and_leaves_nothing():
    def broken(context):
        raise ValueError("no weights there")

    with pytest.raises(DfException, match="no weights there") as caught, running(chain(Point(None, make=broken))):
        pass
    assert caught.value.error_code == FAILED


def test_what_cannot_be_pickled_fails_alone():
    with running(chain(lambda x: threading.Lock() if x == 1 else x)) as runner:
        for value in range(3):
            assert feed(runner, value) == 0
        assert [code for _, _, code in results(runner, 3)] == [0, FLOW_FUNC_FAILED, 0]

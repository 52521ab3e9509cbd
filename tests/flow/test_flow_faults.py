"""Graphs in which something goes wrong: other inputs arrive, in order, none twice, and nothing hangs.

Seeded rounds of faults, on processes of this machine and on Ray; `make soak` runs more of them.
"""

import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from flow_graphs import Point, chain, data, feed, fetch, node, running
from functions_session import session
from toprope.flow.exceptions import FAILED, FLOW_FUNC_FAILED, QUEUE_FULL, DfException
from toprope.flow.graph.nodes import plan
from toprope.flow.stage.spec import PICKLED, Message

pytestmark = [pytest.mark.slow, pytest.mark.native, pytest.mark.process]

SOAK = os.environ.get("TOPROPE_SOAK") == "1"
ROUNDS = 200 if SOAK else 10
OWN_RAY = {"XDG_RUNTIME_DIR": "/none", "RAY_ADDRESS": "", "RAY_AUTH_MODE": "disabled"}
"""Variables of a program that starts a Ray of its own, and does not join one that runs on this machine."""


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


def test_seeded_rounds_of_faults_and_interrupts_of_the_driver(tmp_path):
    """An exception in every tenth input, a stage killed, one that hangs, EOS in the middle, the driver interrupted.

    In a program of its own: an interrupt that comes later than the wait that it was meant for ends no tests.
    """
    rounds_of_faults(range(ROUNDS), tmp_path)


def rounds_of_faults(seeds, folder, *address):
    """Rounds of these seeds, and the interrupts, in a program of their own."""
    program = Path(__file__).resolve().parents[1] / "helpers" / "flow_rounds.py"
    done = subprocess.run(
        [sys.executable, str(program), str(seeds.start), str(seeds.stop), str(folder), *address],
        start_new_session=True, text=True, capture_output=True, timeout=120 * bool(address) + len(seeds) * 25,
        env={**os.environ, **OWN_RAY},
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout, done.stderr[-3000:])
    lines = [line for line in done.stdout.splitlines() if "(raylet)" not in line]  # Ray tells of each death there
    assert [line.partition(":")[0] for line in lines[: len(seeds)]] == [f"seed {number}" for number in seeds]
    assert lines[len(seeds) :] == ["Ctrl-C in fetch and drain", "Ctrl-C in feed"]


@pytest.mark.soak
@pytest.mark.ray
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray, the extra `cluster`, is not installed")
@pytest.mark.parametrize("first", range(0, 200, 50))
def test_seeded_rounds_of_faults_on_ray(tmp_path, first):
    rounds_of_faults(range(first, first + 50), tmp_path, "ray")


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


def test_a_stage_that_ends_with_its_graph_is_not_started_again(monkeypatch):
    """One that was told of the end before it was noted that there is one was taken for dead."""
    with running(chain(slow_plus(1))) as runner:
        close = runner._hosts.close
        monkeypatch.setattr(runner._hosts, "close", lambda: (time.sleep(0.5), close()))
    assert runner.restarts == 0


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


class Interrupts:
    """Ctrl-C comes while it is pickled."""

    def __reduce__(self):
        raise KeyboardInterrupt


def test_an_interrupt_while_an_input_is_pickled_leaves_it_unfed_and_its_head_says_so():
    with running(chain(lambda x: x)) as runner:
        message = Message(PICKLED, Interrupts())
        with pytest.raises(KeyboardInterrupt):
            runner.feed({0: message}, 10_000)
        assert message.head.transaction_id == 0
        assert feed(runner, "next") == 0
        got = runner.fetch(timeout_ms=20_000)
        assert (got.head.transaction_id, got.messages[0].payload) == (1, "next")

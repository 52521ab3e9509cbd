"""Kernels that wait for each other: a deadlock is reported at once, with who holds what, and nothing else is.

Holds sim/launching.py and csrc/core/kernels.h, deadlock.cpp against core rules of docs/limits.md, and toprope.cores.
tests/sim/test_simulated.py runs this module in a process with simulated cards.
"""

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import toprope.sim
from queued import Gate, settle, wait_until
from toprope.cores.check import check
from toprope.cores.formats.trace import from_traces
from toprope.cores.model import Discipline
from toprope.sim import collective, dispatch, kernels, launch

SIM = "910B2x3"
DEADLOCK = r"error code is 507034(?s:.*)Vector core execution timed out\.(?s:.*)Deadlock: "


@pytest.fixture(autouse=True)
def nothing_queued() -> Iterator[None]:
    yield
    settle()
    assert wait_until(lambda: kernels() == [])
    settle()


class Figure:
    """The mission's figure: on two cards each a ReduceScatter on 16, a DispatchCombine on 24, a NonZero on 48 cores."""

    def __init__(self, limit: int = 48) -> None:
        self.reduce_scatter, self.combine = collective("rs", [0, 1]), collective("ep", [0, 1])
        self.streams = {(card, name): torch.npu.Stream(card) for card in (0, 1) for name in ("RS", "DC", "NZ")}
        for card in (0, 1):
            torch.npu.set_stream_limit(self.streams[card, "NZ"], vector_num=limit)

    def launch(self, card: int, name: str, **more: Any) -> None:
        stream = self.streams[card, name]
        if name == "RS":
            launch("vector", None, 16, stream=stream, name="ReduceScatter", collective=self.reduce_scatter, **more)
        elif name == "DC":
            launch("vector", None, 24, stream=stream, name="DispatchCombine", collective=self.combine, **more)
        else:
            launch("vector", None, 48, stream=stream, name="NonZero", sync_all=True, **more)

    def launch_all(self, **more: Any) -> None:
        for card, name in ((0, "RS"), (0, "NZ"), (0, "DC"), (1, "DC"), (1, "NZ"), (1, "RS")):
            self.launch(card, name, **more)

    def close(self) -> None:
        for stream in self.streams.values():
            torch.npu.reset_stream_limit(stream)


@pytest.fixture
def figure() -> Iterator[Any]:
    made: list[Figure] = []

    def make(limit: int = 48) -> Figure:
        made.append(Figure(limit))
        return made[-1]

    yield make
    for each in made:
        each.close()


def held(card: int) -> dict[str, int]:
    return {each.name: each.held_vector for each in kernels() if each.card == card}


def test_the_missions_figure(figure: Any) -> None:
    it = figure()
    begin = time.monotonic()
    for card, name in ((0, "RS"), (0, "NZ"), (0, "DC"), (1, "DC"), (1, "NZ")):
        it.launch(card, name)
    assert held(0) == {"ReduceScatter": 16, "NonZero": 32, "DispatchCombine": 0}
    assert held(1) == {"DispatchCombine": 24, "NonZero": 24}
    waits = {(each.name, each.card): (each.state, each.waits_for) for each in kernels()}
    assert waits["NonZero", 0] == ("waits for cores", "waits for 16 more from ReduceScatter(0)")
    assert waits["ReduceScatter", 0] == ("waits for peers", "waits for its peer on card 1 (not launched yet)")
    it.launch(1, "RS")  # now nobody can go on
    for card in (0, 1):
        with pytest.raises(RuntimeError, match=DEADLOCK) as caught:
            torch.npu.synchronize(card)
        text = str(caught.value)
        for line in (
            "ReduceScatter(0) holds 16 of 16 vector cores, waits for its peer on card 1",
            "NonZero(0) holds 32 of 48 vector cores, waits for 16 more from ReduceScatter(0)",
            "DispatchCombine(0) holds 0 of 24 vector cores, waits for 24 more from NonZero(0)",
            "DispatchCombine(1) holds 24 of 24 vector cores, waits for its peer on card 0",
            "NonZero(1) holds 24 of 48 vector cores, waits for 24 more from DispatchCombine(1)",
            "ReduceScatter(1) holds 0 of 16 vector cores, waits for 16 more from NonZero(1)",
            "NonZero(0) -> ReduceScatter(0) -> ReduceScatter(1) -> NonZero(1) -> DispatchCombine(1) ->"
            " DispatchCombine(0) -> NonZero(0)",
            "after 1091 s, the longest time of an operator, or 1091 s (HCCL_EXEC_TIMEOUT)",
            "torch.npu.set_stream_limit",
        ):
            assert line in text
    assert time.monotonic() - begin < 30  # and not after the 1091 s of an operator
    assert kernels() == []
    torch.npu.synchronize(0)
    torch.npu.synchronize(1)


def test_the_cards_are_well_after_a_deadlock(figure: Any) -> None:
    it = figure()
    x = torch.arange(4.0, device="npu:1")
    it.launch_all()
    for card in (0, 1):
        with pytest.raises(RuntimeError, match="507034"):
            torch.npu.synchronize(card)
    assert (x + 1).tolist() == [1, 2, 3, 4]
    ran: list[str] = []
    launch("vector", None, 48, sync_all=True, body=lambda: ran.append("all"), stream=it.streams[0, "NZ"])
    meeting = collective("again", [0, 1])
    for card in (0, 1):
        launch("vector", None, 48, lambda: ran.append("peer"), it.streams[card, "RS"], collective=meeting)
    torch.npu.synchronize(0)
    torch.npu.synchronize(1)
    assert ran.count("peer") == 2
    assert "all" in ran


@pytest.mark.parametrize("limit", [32, 8])
def test_a_limit_of_the_blocking_kernel_mends_it(figure: Any, limit: int) -> None:
    it = figure(limit)
    ran: list[int] = []
    it.launch_all(body=lambda: ran.append(1))
    torch.npu.synchronize(0)
    torch.npu.synchronize(1)
    assert len(ran) == 6


@pytest.mark.parametrize(
    ("discipline", "limit", "deadlock"),
    [("D0", 48, True), ("D1", 48, True), ("D2", 48, False), ("D0", 8, False), ("D1", 33, True), ("D1", 32, False)],
)
def test_other_disciplines(figure: Any, discipline: str, limit: int, deadlock: bool) -> None:
    """Spec of cores, 3.4: which limits of NonZero are safe under which discipline, in this order of launches."""
    it = figure(limit)
    with dispatch(discipline):
        it.launch_all()
        for card in (0, 1):
            if deadlock:
                with pytest.raises(RuntimeError, match="Deadlock"):
                    torch.npu.synchronize(card)
            else:
                torch.npu.synchronize(card)


def test_the_error_is_told_by_whatever_waits(figure: Any) -> None:
    waits = {
        "stream": lambda it: it.streams[0, "NZ"].synchronize(),
        "event": lambda it: it.streams[0, "NZ"].record_event().synchronize(),
        "device": lambda it: torch.npu.synchronize(0),
        "operator": lambda it: in_stream(it.streams[0, "NZ"]),
    }

    def in_stream(stream: torch.Stream) -> None:
        with torch.npu.stream(stream):
            torch.ones(2, device="npu:0").add(1).cpu()

    for name, wait in waits.items():
        it = figure()
        it.launch_all()
        with pytest.raises(RuntimeError, match=r"507034(?s:.*)NonZero"):
            wait(it)
        settle()
        wait(it)  # told once
        assert name


def failure(card: int) -> str:
    try:
        torch.npu.synchronize(card)
    except RuntimeError as error:
        return str(error)
    return ""


def test_fifty_times_in_a_row(figure: Any) -> None:
    for turn in range(50):
        deadlock = bool(turn % 2)
        it = figure(48 if deadlock else 32)
        it.launch_all()
        told = [failure(card) for card in (0, 1)]
        assert ["Deadlock" in each for each in told] == [deadlock] * 2
        assert deadlock or told == ["", ""]
        it.close()


def test_pairs_that_fit_are_not_enough_on_three_cards() -> None:
    """Three collectives of 24 cores: every two of them fit, and each card begins another two."""
    for cores, deadlock in ((24, True), (16, False)):
        meetings = [collective(name, [0, 1, 2]) for name in "XYZ"]
        places = {(card, number): torch.npu.Stream(card) for card in range(3) for number in range(3)}
        for card in range(3):
            for number in (card, (card + 1) % 3, (card + 2) % 3):
                launch(
                    "vector", None, cores, stream=places[card, number], name="XYZ"[number], collective=meetings[number]
                )
        for card in range(3):
            if deadlock:
                with pytest.raises(RuntimeError, match=DEADLOCK):
                    torch.npu.synchronize(card)
            else:
                torch.npu.synchronize(card)


def test_a_peer_that_the_host_launches_late_is_no_deadlock() -> None:
    meeting = collective("late", [0, 1])
    ran: list[int] = []
    launch("vector", None, 48, lambda: ran.append(0), torch.npu.Stream(0), collective=meeting)
    behind = torch.npu.Stream(0)
    launch("vector", None, 48, stream=behind, sync_all=True, name="behind")
    time.sleep(0.1)
    assert [each.state for each in kernels()] == ["waits for peers", "waits for cores"]
    launch("vector", None, 4, lambda: ran.append(1), torch.npu.Stream(1), collective=meeting)
    torch.npu.synchronize(0)
    torch.npu.synchronize(1)
    assert sorted(ran) == [0, 1]


def test_a_peer_that_never_comes_ends_with_the_ordinary_limit() -> None:
    meeting = collective("never", [0, 1])
    torch.npu.set_op_timeout_ms(200)
    try:
        launch("vector", None, 48, stream=torch.npu.Stream(0), name="AllReduce", collective=meeting)
        with pytest.raises(RuntimeError, match=r"5070|107019") as caught:
            torch.npu.synchronize(0)
        assert wait_until(lambda: kernels() == [])  # it has the same limit, which it reads when it begins
    finally:
        torch.npu.set_op_timeout_ms(1091 * 1000)
    assert "Deadlock" not in str(caught.value)
    if "507034" in str(caught.value):
        assert "AllReduce(0) holds 48 of 48 vector cores and has waited for" in str(caught.value)
        assert "card 1 (not launched yet)" in str(caught.value)


def test_a_circle_through_an_event() -> None:
    """X waits for its peer, which waits for an event that comes after X."""
    meeting = collective("X", [0, 1])
    first, second = torch.npu.Stream(0), torch.npu.Stream(1)
    launch("vector", None, 8, stream=first, name="X", collective=meeting)
    second.wait_event(first.record_event())
    assert len(kernels()) == 1
    launch("vector", None, 8, stream=second, name="X", collective=meeting)
    with pytest.raises(RuntimeError, match=DEADLOCK) as caught:
        first.synchronize()
    assert "a wait for an event on stream" in str(caught.value)
    with pytest.raises(RuntimeError, match="507034"):
        second.synchronize()


def test_an_event_that_is_recorded_again_elsewhere_does_not_let_a_waiter_go() -> None:
    """As on a card, a wait is for the recording that it saw."""
    gate, event = Gate(torch.npu.Stream()), torch.npu.Event()
    blocked, waiting, free = torch.npu.Stream(), torch.npu.Stream(), torch.npu.Stream()
    closed = Gate(blocked)
    event.record(blocked)
    waiting.wait_event(event)
    event.record(free)
    assert event.query()
    time.sleep(0.05)
    assert not waiting.query()
    closed.open()
    waiting.synchronize()
    gate.open()


def test_collectives_in_another_order_on_each_card() -> None:
    first, second = collective("first", [0, 1]), collective("second", [0, 1])
    here, there = torch.npu.Stream(0), torch.npu.Stream(1)
    for stream, order in ((here, (first, second)), (there, (second, first))):
        for each in order:
            launch("cube", 4, stream=stream, name=each.name, collective=each)
    with pytest.raises(RuntimeError, match=r"507014(?s:.*)The aicore execution times out") as caught:
        torch.npu.synchronize(0)
    assert re.search(
        r"holds 4 of 4 cube cores, waits for its peer on card 1 \(its stream has not come", str(caught.value)
    )


def test_work_that_is_no_kernel_may_still_let_it_go_on() -> None:
    """A queued function is taken to come to an end, however long it takes."""
    meeting = collective("slow", [0, 1])
    first, second = torch.npu.Stream(0), torch.npu.Stream(1)
    gate = Gate(second)
    launch("vector", None, 48, stream=first, collective=meeting)
    launch("vector", None, 48, stream=second, collective=meeting)
    launch("vector", None, 48, stream=torch.npu.Stream(0), sync_all=True)
    time.sleep(0.05)
    assert [each.state for each in kernels()] == ["waits for peers", "queued", "waits for cores"]
    gate.open()
    torch.npu.synchronize(0)
    torch.npu.synchronize(1)


def test_many_threads_launch_and_wait() -> None:
    meetings = [collective(f"thread {number}", [0, 1]) for number in range(4)]
    failures: list[BaseException] = []
    done = [0] * 4

    def work(number: int) -> None:
        try:
            mine = [torch.npu.Stream(card) for card in (0, 1)]
            for _ in range(40):
                for stream in mine:
                    launch("vector", None, 12, lambda: done.__setitem__(number, done[number] + 1), stream,
                           collective=meetings[number])  # fmt: skip
                    launch("vector", None, 12, stream=stream, sync_all=True)
                mine[0].synchronize()
            mine[1].synchronize()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert failures == []
    assert done == [80] * 4


@pytest.mark.parametrize("limit", [48, 8])
def test_the_example(limit: int) -> None:
    program = Path(__file__).resolve().parents[3] / "examples" / "core_deadlock.py"
    done = subprocess.run(
        [sys.executable, str(program), "--limit", str(limit)],
        env={**os.environ, "TOPROPE_SIM": "910B2x2"}, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    if limit == 8:
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == "all six kernels ended, with NonZero on 8 vector cores\n"
    else:
        assert done.returncode == 1
        assert "error code is 507034" in done.stderr
        assert "NonZero(0) -> ReduceScatter(0) -> ReduceScatter(1) -> NonZero(1) ->" in done.stderr


@pytest.mark.parametrize(("limit", "verdict"), [(48, "deadlock"), (8, "safe")])
def test_the_checker_says_the_same_of_the_trace(figure: Any, limit: int, verdict: str) -> None:
    it = figure(limit)
    with toprope.sim.trace() as recorded:
        it.launch_all()
        told = [failure(card) for card in (0, 1)]
    assert all(told) == (verdict == "deadlock")
    program = from_traces([recorded.trace], "910B2")
    assert [each.cards for each in program.communicators] == [("0", "1")] * 2
    assert check(program, discipline=Discipline.D0B).verdict == verdict

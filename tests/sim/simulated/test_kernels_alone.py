"""Kernels that take cores: who gets how many, what they do with them, and how they end.

Holds sim/launching.py and csrc/core/kernels.h against the documented rules of core limits. tests/sim/test_simulated.py
runs this module in a process with simulated cards.
"""

import gc
import math
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import toprope.sim
from children import facts
from queued import Gate, settle, wait_until
from toprope.errors import UsageError
from toprope.sim import collective, dispatch, kernels, launch

SIM = "910B2x3"


@pytest.fixture(autouse=True)
def nothing_queued() -> Iterator[None]:
    yield
    settle()
    assert wait_until(lambda: kernels() == [])
    settle()


def test_first_come_first_served() -> None:
    order: list[str] = []
    gate = threading.Event()
    first, large, small = (torch.npu.Stream() for _ in range(3))
    launch("vector", None, 40, lambda: (gate.wait(20), order.append("first")), first)
    launch("vector", None, 48, lambda: order.append("large"), large, sync_all=True)
    launch("vector", None, 4, lambda: order.append("small"), small)
    assert [each.held_vector for each in kernels()] == [40, 8, 0]
    gate.set()
    torch.npu.synchronize()
    assert order[0] == "first"
    assert set(order) == {"first", "large", "small"}


def test_a_kernel_of_independent_blocks_runs_on_what_is_there() -> None:
    gate = threading.Event()
    launch("vector", None, 44, lambda: gate.wait(20), torch.npu.Stream(), sync_all=True)
    ran: list[int] = []
    elastic = torch.npu.Stream()
    launch("vector", None, 48, lambda: ran.append(kernels()[-1].held_vector), elastic)
    elastic.synchronize()
    assert ran == [4]
    gate.set()
    torch.npu.synchronize()


def test_cube_and_vector_cores_do_not_get_in_each_others_way() -> None:
    together = threading.Barrier(2)
    launch("cube", None, None, lambda: together.wait(20), torch.npu.Stream(), sync_all=True)
    launch("vector", None, None, lambda: together.wait(20), torch.npu.Stream(), sync_all=True)
    torch.npu.synchronize()
    assert not together.broken


def test_a_mixed_kernel_takes_whole_blocks_within_its_limits() -> None:
    stream = torch.npu.Stream()
    seen: list[tuple[int, int]] = []

    def look() -> None:
        (one,) = kernels()
        seen.append((one.held_cube, one.held_vector))

    wishes = [((None, None), (24, 48)), ((8, 16), (8, 16)), ((6, 6), (6, 6)), ((None, 10), (5, 10))]
    try:
        for (cube, vector), _ in wishes:
            launch("mix", cube, vector, look, stream)
            stream.synchronize()
        torch.npu.set_stream_limit(stream, 8, 5)
        launch("mix", 8, 16, look, stream)
        stream.synchronize()
    finally:
        torch.npu.reset_stream_limit(stream)
    assert seen == [*(cores for _, cores in wishes), (2, 4)]


def test_a_limit_that_leaves_no_block() -> None:
    stream = torch.npu.Stream()
    torch.npu.set_stream_limit(stream, 4, 1)
    ran: list[int] = []
    try:
        with pytest.warns(UserWarning, match="Attention takes 1 cube and 2 vector cores, its stream allows 4 and 1"):
            launch("mix", 8, 16, lambda: ran.append(1), stream, name="Attention")
        stream.synchronize()
        with dispatch(budget="strict"), pytest.raises(UsageError, match="takes 1 cube and 2 vector cores"):
            launch("mix", 8, 16, lambda: ran.append(2), stream)
        stream.synchronize()
    finally:
        torch.npu.reset_stream_limit(stream)
    assert ran == [1]


def test_a_kernel_that_was_launched_keeps_its_limit() -> None:
    stream = torch.npu.Stream()
    gate = Gate(stream)
    seen: list[int] = []
    try:
        torch.npu.set_stream_limit(stream, vector_num=10)
        launch("vector", body=lambda: seen.append(kernels()[0].vector), stream=stream)
        torch.npu.set_stream_limit(stream, vector_num=20)
        launch("vector", body=lambda: seen.append(kernels()[0].vector), stream=stream)
        gate.open()
        stream.synchronize()
    finally:
        torch.npu.reset_stream_limit(stream)
    assert seen == [10, 20]


def test_members_of_a_collective_end_together() -> None:
    meeting, gate = collective("together", [0, 1, 2]), threading.Event()
    places = [torch.npu.Stream(card) for card in range(3)]
    for card, stream in enumerate(places):
        launch("vector", None, 8, (lambda: gate.wait(20)) if card == 1 else None, stream, collective=meeting)
    time.sleep(0.05)
    assert [stream.query() for stream in places] == [False] * 3
    gate.set()
    for card in range(3):
        torch.npu.synchronize(card)


def test_it_lasts_as_long_as_it_says() -> None:
    stream = torch.npu.Stream()
    begin = time.monotonic()
    launch("vector", stream=stream, microseconds=50_000)
    stream.synchronize()
    assert time.monotonic() - begin >= 0.05


def test_a_body_that_fails() -> None:
    stream = torch.npu.Stream()
    launch("vector", body=lambda: 1 / 0, stream=stream)
    with pytest.raises(RuntimeError, match=r"507035(?s:.*)ZeroDivisionError: division by zero"):
        stream.synchronize()
    launch("cube", body=lambda: 1 / 0, stream=stream)
    with pytest.raises(RuntimeError, match="507015"):
        stream.synchronize()
    launch("cube", stream=stream)
    stream.synchronize()


def test_kernels_of_a_stream_that_failed_are_dropped_until_it_is_told() -> None:
    meeting = collective("dropped", [0, 1])
    here, there = torch.npu.Stream(0), torch.npu.Stream(1)
    ran: list[int] = []
    launch("vector", body=lambda: 1 / 0, stream=here)
    launch("vector", body=lambda: ran.append(1), stream=here)
    launch("vector", body=lambda: ran.append(2), stream=here, collective=meeting)
    launch("vector", body=lambda: ran.append(3), stream=there, collective=meeting)
    with pytest.raises(RuntimeError, match=r"507034(?s:.*)its peers wait for it"):
        there.synchronize()
    with pytest.raises(RuntimeError, match="507035"):
        here.synchronize()
    assert ran == []
    launch("vector", body=lambda: ran.append(4), stream=here)
    here.synchronize()
    assert ran == [4]


def test_a_card_that_is_stopped_lets_its_kernels_go() -> None:
    meeting = collective("stopped", [0, 1])
    launch("vector", None, 48, stream=torch.npu.Stream(1), collective=meeting)
    launch("vector", None, 48, stream=torch.npu.Stream(1), sync_all=True)
    torch.npu.stop_device(1)
    assert wait_until(lambda: kernels() == [])
    torch.npu.restart_device(1)
    launch("vector", None, 48, stream=torch.npu.Stream(0), collective=meeting)
    with pytest.raises(RuntimeError, match=r"507034(?s:.*)failed with 107022"):
        torch.npu.synchronize(0)


def resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


def test_many_launches_leave_nothing_behind() -> None:
    stream, meeting = torch.npu.Stream(0), collective("many", [0])

    def rounds(number: int) -> None:
        for turn in range(number):
            launch("vector", None, 48, lambda: None, stream, sync_all=True)
            launch("vector", None, 8, stream=stream, collective=meeting)
            if turn % 100 == 99:  # how long the queue gets is not left to the machine's load
                stream.synchronize()

    rounds(500)
    gc.collect()
    before = resident()
    rounds(5000)
    gc.collect()
    if "ASAN_OPTIONS" not in os.environ:  # AddressSanitizer keeps what was freed for a while
        assert resident() - before < 4 * 2**20
    from toprope.sim import launching

    assert launching._bodies == {}


def test_a_long_queue_behind_one_that_waits_is_quick() -> None:
    gate = threading.Event()
    launch("vector", None, 48, lambda: gate.wait(30), torch.npu.Stream(), sync_all=True)
    stream = torch.npu.Stream()
    begin = time.process_time()
    for _ in range(3000):
        launch("vector", None, 48, stream=stream, sync_all=True)
    assert time.process_time() - begin < 3
    gate.set()
    torch.npu.synchronize()


def test_kernels_stand_in_the_trace() -> None:
    meeting = collective("ep", [0, 1])
    places = [torch.npu.Stream(card) for card in (0, 1)]
    torch.npu.set_stream_limit(places[0], vector_num=10)
    try:
        with toprope.sim.trace() as recorded:
            launch("vector", stream=places[0], name="Swiglu")
            launch("mix", 4, 8, stream=places[0], name="Attention")
            launch("vector", None, 6, stream=places[0], name="NonZero", sync_all=True)
            for _ in range(2):
                for stream in places:
                    launch("vector", None, 8, stream=stream, name="Combine", collective=meeting)
            torch.npu.synchronize(0)
            torch.npu.synchronize(1)
    finally:
        torch.npu.reset_stream_limit(places[0])
    found = [each for each in recorded.records if each.act == "kernel" and each.device == 0]
    assert [(each.name, each.cube_cores, each.vector_cores, each.kind, each.sync_all) for each in found] == [
        ("Swiglu", 0, 10, "AI_VECTOR_CORE", False),
        ("Attention", 4, 8, "MIX_AIC", False),
        ("NonZero", 0, 6, "AI_VECTOR_CORE", True),
        ("Combine", 0, 8, "AI_VECTOR_CORE", False),
        ("Combine", 0, 8, "AI_VECTOR_CORE", False),
    ]
    launched = [each for each in recorded.records if each.act == "launch"]
    assert [(each.name, each.kind, each.sequence) for each in launched if each.device == 0] == [
        (each.name, each.kind, each.sequence) for each in found
    ]
    assert {each.thread for each in launched} == {threading.get_native_id()}
    members = sorted(
        (each.communicator, each.sequence, each.rank, each.ranks, each.device)
        for each in recorded.records
        if each.communicator and each.act == "kernel"
    )
    assert members == [("ep", 0, 0, 2, 0), ("ep", 0, 1, 2, 1), ("ep", 1, 0, 2, 0), ("ep", 1, 1, 2, 1)]
    assert not [each for each in recorded.records if each.act == "task"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"kind": "tensor"}, "no kind of kernel"),
        ({"kind": "vector", "vector": 0}, "not a number of cores"),
        ({"kind": "vector", "vector": True}, "not a number of cores"),
        ({"kind": "vector", "cube": 3}, "cores of that kind alone"),
        ({"kind": "cube", "vector": 3}, "cores of that kind alone"),
        ({"kind": "vector", "name": "a\tb"}, "is no name"),
        ({"kind": "vector", "name": "n" * 41}, "is no name"),
        ({"kind": "vector", "stream": 3}, "no stream of a card"),
        ({"kind": "vector", "microseconds": -1}, "cannot take -1 microseconds"),
        ({"kind": "vector", "microseconds": math.nan}, "cannot take nan microseconds"),
    ],
)
def test_what_cannot_be_launched(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        launch(**arguments)
    assert kernels() == []


def test_what_is_no_collective() -> None:
    for cards in ([], [0, 0], [7], [-1]):
        with pytest.raises(UsageError, match="no cards of a communicator"):
            collective("none", cards)
    with pytest.raises(UsageError, match="too long"):
        collective("n" * 25, [0])
    meeting = collective("two", [0, 1])
    assert repr(meeting) == "Collective('two', cards=[0, 1])"
    with pytest.raises(UsageError, match="has no member on card 2"):
        launch("vector", stream=torch.npu.Stream(2), collective=meeting)
    with pytest.raises(UsageError, match="no discipline"), dispatch("D3"):
        pass


def test_a_program_that_does_not_wait_ends_all_the_same() -> None:
    """Kernels with Python in them, some of which can never run, do not keep the process or break its end."""
    assert (
        facts(
            """
        import json, torch
        from toprope.sim import collective, launch
        meeting = collective("alone", [0, 1])
        launch("vector", body=lambda: None, stream=torch.npu.Stream(0), collective=meeting)
        launch("vector", body=lambda: None, stream=torch.npu.Stream(0), sync_all=True)
        launch("cube", body=lambda: None, stream=torch.npu.Stream(0), microseconds=1000)
        print(json.dumps("ended"))
        """,
            sim="910B2x2",
        )
        == "ended"
    )

"""Limits of the cores that the process, or a stream, is to use: torch_npu's calls, their texts and their order.

Holds sim/npu/limits.py and csrc/core/core_limits.h against torch_npu's own tests and texts. tests/sim/test_simulated.py
runs this module in a process with simulated cards.
"""

import threading
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import toprope.sim
from children import facts
from toprope.sim.npu import limits

SIM = "910B2x2"
WHOLE = {"cube_core_num": 24, "vector_core_num": 48}


def cores(cube: int, vector: int) -> dict[str, int]:
    return {"cube_core_num": cube, "vector_core_num": vector}


@pytest.fixture
def stream():
    stream = torch.npu.Stream()
    yield stream
    torch.npu.reset_stream_limit(stream)


def test_nothing_is_limited_at_first(stream) -> None:
    for each in (torch.npu.current_stream(), torch.npu.default_stream(1), stream):
        assert torch.npu.get_stream_limit(each) == WHOLE
    assert torch.npu.get_device_limit(0) == torch.npu.get_device_limit(1) == WHOLE


def test_a_limit_is_of_the_stream_whoever_holds_it(stream) -> None:
    torch.npu.set_stream_limit(stream, 3, 8)
    assert torch.npu.get_stream_limit(stream) == cores(3, 8)
    with torch.npu.stream(stream):
        assert torch.npu.get_stream_limit(torch.npu.current_stream()) == cores(3, 8)
    assert torch.npu.get_stream_limit(torch.npu.current_stream()) == WHOLE
    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch.npu.get_stream_limit(stream)))
    thread.start()
    thread.join()
    assert seen == [cores(3, 8)]


def test_streams_of_the_same_number_on_two_cards() -> None:
    here, there = torch.npu.default_stream(0), torch.npu.default_stream(1)
    torch.npu.set_stream_limit(there, 1, 2)
    assert (torch.npu.get_stream_limit(here), torch.npu.get_stream_limit(there)) == (WHOLE, cores(1, 2))
    torch.npu.reset_stream_limit(there)
    assert torch.npu.get_stream_limit(there) == WHOLE


def test_minus_one_leaves_as_it_is(stream) -> None:
    torch.npu.set_stream_limit(stream, 8, 16)
    torch.npu.set_stream_limit(stream, cube_num=3)
    assert torch.npu.get_stream_limit(stream) == cores(3, 16)
    torch.npu.set_stream_limit(stream)
    torch.npu.set_stream_limit(stream, -1, -1)
    assert torch.npu.get_stream_limit(stream) == cores(3, 16)
    torch.npu.set_stream_limit(stream, vector_num=48)
    assert torch.npu.get_stream_limit(stream) == cores(3, 48)


def test_zero_and_all_cores_are_allowed(stream) -> None:
    torch.npu.set_stream_limit(stream, 0, 0)
    assert torch.npu.get_stream_limit(stream) == cores(0, 0)
    torch.npu.set_stream_limit(stream, 24, 48)
    assert torch.npu.get_stream_limit(stream) == WHOLE


def test_more_cores_than_the_chip_has(stream) -> None:
    torch.npu.set_stream_limit(stream, 5, 6)
    with pytest.raises(RuntimeError) as caught:
        torch.npu.set_stream_limit(stream, 25, 10)
    text = str(caught.value)
    assert "error code is 107000" in text
    assert "Parameter verification failed" in text
    assert "EE1003" in text
    assert "ERR00100 PTA call acl api failed" in text
    assert (
        "Setting the device resource limits of a specific stream failed because value 25 for parameter value is"
        " invalid. Expected value: must be less than or equal to 24." in text
    )
    assert torch.npu.get_stream_limit(stream) == cores(5, 6)


def test_a_call_that_fails_half_way_has_set_the_cube_cores(stream) -> None:
    with pytest.raises(RuntimeError, match="must be less than or equal to 48"):
        torch.npu.set_stream_limit(stream, 10, 49)
    assert torch.npu.get_stream_limit(stream) == cores(10, 48)


@pytest.mark.parametrize("value", [None, 3.0, "3"])
def test_a_number_of_cores_is_an_int(stream, value) -> None:
    with pytest.raises(TypeError, match="an integer is required"):
        torch.npu.set_stream_limit(stream, value, 4)
    assert torch.npu.get_stream_limit(stream) == WHOLE


def test_numbers_that_are_no_uint32(stream) -> None:
    with pytest.raises(OverflowError):
        torch.npu.set_stream_limit(stream, -2)
    with pytest.raises(RuntimeError, match="Overflow when unpacking"):
        torch.npu.set_stream_limit(stream, 2**32)
    torch.npu.set_stream_limit(stream, True)
    assert torch.npu.get_stream_limit(stream) == cores(1, 48)


@pytest.mark.parametrize("call", [torch.npu.set_stream_limit, torch.npu.get_stream_limit, torch.npu.reset_stream_limit])
def test_what_is_no_stream_of_torch_npu(call) -> None:
    with pytest.raises(AssertionError, match=r"^stream cannot be None\n.*ERR00001 PTA invalid parameter$"):
        call(None)
    for other in (torch.Stream("npu:0"), torch.npu.SyncLaunchStream(), 0, "npu:0"):
        with pytest.raises(AssertionError, match=r"^stream should be torch_npu\.npu\.Stream, could not be <class"):
            call(other)


@pytest.mark.parametrize("device", ["0", 0.0, None, True, False, torch.device("npu:0")])
def test_a_card_is_an_int(device) -> None:
    name = type(device).__name__
    with pytest.raises(TypeError, match=rf"^device must be an int, but got {name}\n.*ERR00002 PTA invalid type$"):
        torch.npu.get_device_limit(device)


@pytest.mark.parametrize("device", [-1, 2, 99])
def test_a_card_that_is_not_there(device) -> None:
    with pytest.raises(AssertionError, match=r"^Invalid device id\n.*ERR00003 PTA invalid value$"):
        torch.npu.get_device_limit(device)


def test_the_process_limits_a_card_once() -> None:
    """torch_npu's own test: a stream may have more than the process, and falls back to it, kind by kind."""
    assert facts(
        """
        import json, torch
        first, second = torch.npu.Stream(), torch.npu.Stream()
        get, found = torch.npu.get_stream_limit, []
        torch.npu.set_device_limit(0, 12, 24)
        found += [torch.npu.get_device_limit(0), torch.npu.get_device_limit(1), get(first)]
        torch.npu.set_stream_limit(first, 13, 25)
        torch.npu.set_stream_limit(second, vector_num=26)
        found += [get(first), get(second)]
        torch.npu.reset_stream_limit(first)
        found += [get(first), get(second), get(torch.npu.default_stream(1))]
        try:
            torch.npu.set_device_limit(1, 1, 1)
        except RuntimeError as error:
            found.append(str(error))
        from toprope.sim.npu.limits import reset_device_limit
        reset_device_limit(0)
        found += [torch.npu.get_device_limit(0), get(second)]
        print(json.dumps(found))
        """,
        sim=SIM,
    ) == [
        cores(12, 24), WHOLE, cores(12, 24), cores(13, 25), cores(12, 26), cores(12, 24), cores(12, 26), WHOLE,
        "Function 'set_device_limit' has already been called, You can only set this interface once.",
        WHOLE, cores(24, 26),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "error", "left"),
    [
        ("'0', 1", "TypeError: device must be an int, but got str", WHOLE),
        ("True", "TypeError: device must be an int, but got bool", WHOLE),
        ("2, 1", "AssertionError: Invalid device id", WHOLE),
        ("0, 25", "must be less than or equal to 24", WHOLE),
        ("0, 7, 49", "must be less than or equal to 48", cores(7, 48)),
        ("", "TypeError: set_device_limit() missing 1 required positional argument: 'device'", WHOLE),
    ],
)
def test_a_first_call_that_fails_counts(call, error, left) -> None:
    first, second, now = facts(
        f"""
        import json, torch
        found = []
        for arguments in ("{call}", "0, 4"):
            try:
                eval(f"torch.npu.set_device_limit({{arguments}})")
            except Exception as problem:
                found.append(type(problem).__name__ + ": " + str(problem))
        print(json.dumps([*found, torch.npu.get_device_limit(0)]))
        """,
        sim=SIM,
    )
    assert error in first
    assert "has already been called" in second
    assert now == left


def test_the_text_of_the_process_limit() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.npu.set_device_limit(0, 25)
    assert "Setting the device resource limit failed because value 25 for parameter value is invalid." in str(
        caught.value
    )
    assert "error code is 107000" in str(caught.value)


def test_a_chip_without_vector_cores() -> None:
    assert facts(
        """
        import json, torch
        stream, found = torch.npu.current_stream(), []
        found.append(torch.npu.get_stream_limit(stream))
        try:
            torch.npu.set_stream_limit(stream, 3, 1)
        except RuntimeError as error:
            found.append("must be less than or equal to 0" in str(error))
        torch.npu.set_stream_limit(stream, vector_num=0)
        print(json.dumps([*found, torch.npu.get_stream_limit(stream)]))
        """,
        sim="910A",
    ) == [cores(32, 0), True, cores(3, 0)]


def test_what_counts_for_work(stream) -> None:
    torch.npu.set_stream_limit(stream, vector_num=9)
    assert limits.in_force(0) == WHOLE
    assert limits.in_force(0, stream.stream_id) == cores(24, 9)
    assert limits.in_force(1, stream.stream_id) == WHOLE


def test_work_on_a_limited_stream_gives_the_same(stream) -> None:
    torch.npu.set_stream_limit(stream, 3, 8)
    x = torch.randn(64, 64)
    with torch.npu.stream(stream):
        assert torch.allclose((x.npu() @ x.npu()).cpu(), x @ x, atol=1e-5)


# ---- what work is launched on


def given(recorded: Any) -> list[tuple[str, int, int]]:
    """Operators of a trace with the cube and vector cores that they were given."""
    return [(each.name, each.cube_cores, each.vector_cores) for each in recorded.trace.operators()]


def test_a_stream_may_use_more_than_the_process_allows() -> None:
    assert facts(
        """
        import json, torch, toprope.sim
        stream, x = torch.npu.Stream(), torch.ones(4, device="npu")
        torch.npu.set_device_limit(0, 4, 6)
        torch.npu.set_stream_limit(stream, 8, 10)
        with toprope.sim.trace() as recorded:
            x.neg()
            with torch.npu.stream(stream):
                x.abs()
        print(json.dumps([[each.name, each.vector_cores] for each in recorded.trace.operators()]))
        """,
        sim=SIM,
    ) == [["aten::neg", 6], ["aten::abs", 10]]


def test_swiglu_on_two_limited_streams() -> None:
    """The vendor's example of both limits: the counts follow them, the numbers do not."""
    x, results = torch.randn(16, 64), []
    on_card, first, second = x.npu(), torch.npu.Stream(), torch.npu.Stream()
    torch.npu.set_stream_limit(first, 12, 22)
    torch.npu.set_stream_limit(second, 13, 23)
    with toprope.sim.trace() as recorded:
        for each in (first, second):
            with torch.npu.stream(each):
                left, right = on_card.chunk(2, -1)
                results.append(F.silu(left) * right)
    for each in (first, second):
        torch.npu.reset_stream_limit(each)
    assert given(recorded) == [
        ("aten::silu", 0, 22), ("aten::mul", 0, 22), ("aten::silu", 0, 23), ("aten::mul", 0, 23),
    ]  # fmt: skip
    left, right = x.chunk(2, -1)
    assert torch.equal(results[0].cpu(), results[1].cpu())
    assert torch.allclose(results[0].cpu(), F.silu(left) * right, atol=1e-6)


def test_cube_vector_and_mixed_operators(stream) -> None:
    x = torch.randn(1, 2, 8, 16, device="npu")
    for cube, vector, blocks in ((4, 10, 4), (8, 5, 2)):
        torch.npu.set_stream_limit(stream, cube, vector)
        with toprope.sim.trace() as recorded, torch.npu.stream(stream):
            x[0, 0] @ x[0, 0].t()
            x.neg()
            F.scaled_dot_product_attention(x, x, x)
        assert [each for each in given(recorded) if each[0] in ("aten::mm", "aten::neg")] == [
            ("aten::mm", cube, 0), ("aten::neg", 0, vector),
        ]  # fmt: skip
        (attention,) = (each for each in recorded.trace.operators() if "attention" in each.name)
        assert (attention.cube_cores, attention.vector_cores, attention.kind) == (blocks, 2 * blocks, "MIX_AIC")
        assert attention.limit == (cube, vector)


def test_the_kind_of_core_that_is_not_used_limits_nothing(stream) -> None:
    x = torch.ones(4, 4, device="npu")
    torch.npu.set_stream_limit(stream, vector_num=1)
    with toprope.sim.trace() as recorded, torch.npu.stream(stream):
        x @ x
    assert given(recorded) == [("aten::mm", 24, 0)]


def test_who_sees_the_limit_of_a_stream(stream) -> None:
    """Whoever chose the stream, in any thread; a thread that never chose one has the limits of the process."""
    x, default = torch.ones(4, device="npu"), torch.npu.default_stream()
    torch.npu.set_stream_limit(stream, 3, 8)
    torch.npu.set_stream_limit(default, 5, 9)

    def chooses() -> None:
        with torch.npu.stream(stream):
            x.neg()
        x.abs()  # back on the default stream, which is chosen now

    try:
        for work, expected in ((chooses, [8, 9]), (lambda: x.neg(), [48])):
            with toprope.sim.trace() as recorded:
                thread = threading.Thread(target=work)
                thread.start()
                thread.join()
            assert [each.vector_cores for each in recorded.trace.operators()] == expected
    finally:
        torch.npu.reset_stream_limit(default)


def test_backward_has_the_limit_of_its_forward(stream) -> None:
    torch.npu.set_stream_limit(stream, 3, 8)
    with torch.npu.stream(stream):
        x = torch.ones(4, device="npu", requires_grad=True)
        y = x.neg().sum()
    with toprope.sim.trace() as recorded:
        y.backward()
    backward = [each for each in recorded.trace.operators() if each.name == "aten::neg"]
    assert [(each.stream, each.vector_cores) for each in backward] == [(stream.stream_id, 8)]


def test_a_change_counts_from_the_next_operator_on(stream) -> None:
    x = torch.ones(4, device="npu")
    with toprope.sim.trace() as recorded, torch.npu.stream(stream):
        for vector in (10, 20):
            torch.npu.set_stream_limit(stream, vector_num=vector)
            x.neg()
        torch.npu.reset_stream_limit(stream)
        x.neg()
        x.copy_(x + 1)
    assert [each[2] for each in given(recorded)] == [10, 20, 48, 48, 48]


def test_an_operator_that_no_source_describes_counts_as_assumed(stream) -> None:
    x = torch.eye(4, device="npu")
    with toprope.sim.trace() as recorded:
        torch.linalg.cholesky(x)
        x.neg()
    assumed = {each.name: each.assumed for each in recorded.trace.operators()}
    assert assumed["aten::neg"] is False
    assert any(assumed.values())
    assert {each.kind for each in recorded.trace.operators() if each.assumed} == {"AI_VECTOR_CORE"}


def test_a_profile_of_kernels_can_be_written(stream, tmp_path) -> None:
    x = torch.ones(4, 4, device="npu")
    torch.npu.set_stream_limit(stream, 12, 22)
    with toprope.sim.trace() as recorded, torch.npu.stream(stream):
        (x @ x).neg()
    recorded.trace.kernel_details(tmp_path / "kernel_details.csv")
    head, *rows = (tmp_path / "kernel_details.csv").read_text().splitlines()
    assert head.startswith("Device_id,Model ID,Task ID,Stream ID,Name,Type,OP State,Accelerator Core,Start Time(us),")
    assert [row.split(",")[4:8] + row.split(",")[11:13] for row in rows] == [
        ["aten::mm", "Mm", "dynamic", "AI_CORE", "12", "0"],
        ["aten::neg", "Neg", "dynamic", "AI_VECTOR_CORE", "22", "0"],
    ]

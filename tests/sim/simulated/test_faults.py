"""Failures on demand: each is there inside its block, has the error of a card, and leaves nothing behind.

Holds sim/faults.py and csrc/core/faults.h against errors of real cards. tests/sim/test_simulated.py runs this module in
a process with simulated cards.
"""

import contextlib
import re
import time

import pytest
import torch

from children import facts, run
from toprope.errors import UsageError
from toprope.sim import faults

SIM = "910B3x2,hbm=64MiB"


def ones(dtype: torch.dtype = torch.float32, device: str = "npu") -> torch.Tensor:
    return torch.ones(4, 4, dtype=dtype, device=device)


# ---- refuse


def test_refuse_one_dtype_of_one_operator() -> None:
    half, full = ones(torch.bfloat16), ones()
    with faults.refuse("mm", "bfloat16"):
        with pytest.raises(RuntimeError, match=r"EZ1001.*aten::mm not implemented for DT_BFLOAT16"):
            half @ half
        assert (full @ full).sum().item() == 64
        assert (half + half).sum().item() == 32
    assert (half @ half).sum().item() == 64


@pytest.mark.parametrize(
    ("dtype", "name"), [("float64", "DT_DOUBLE"), (torch.float32, "DT_FLOAT"), ("int8", "DT_INT8")]
)
def test_refused_dtypes_have_the_vendors_names(dtype: object, name: str) -> None:
    tensor = ones(getattr(torch, str(dtype).removeprefix("torch.")))
    with faults.refuse("aten::add", dtype), pytest.raises(RuntimeError, match=f"not implemented for {name} "):
        tensor + tensor


def test_refuse_an_operator_altogether() -> None:
    with faults.refuse("softmax"), faults.refuse("_softmax"):
        for dtype in (torch.float32, torch.float16):
            with pytest.raises(RuntimeError, match="EZ1001"):
                ones(dtype).softmax(-1)
    assert ones().softmax(-1).sum().item() == 4


def test_a_refusal_says_that_it_was_asked_for() -> None:
    with faults.refuse("mul"), pytest.raises(RuntimeError, match=re.escape("toprope.sim.faults.refuse")):
        ones() * 2


def test_refusals_lie_inside_each_other() -> None:
    half, full = ones(torch.float16), ones()
    with faults.refuse("mm", "float16"):
        with faults.refuse("mm", "float32"):
            for tensor in (half, full):
                with pytest.raises(RuntimeError, match="EZ1001"):
                    tensor @ tensor
        assert (full @ full).sum().item() == 64
        with pytest.raises(RuntimeError, match="EZ1001"):
            half @ half


def test_a_refusal_ends_with_an_error_in_the_block() -> None:
    with pytest.raises(KeyError), faults.refuse("mm"):
        raise KeyError
    assert (ones() @ ones()).sum().item() == 64


def test_refuse_wants_a_dtype_of_torch() -> None:
    with (
        pytest.raises(UsageError, match="'half-precision' is not a dtype of torch"),
        faults.refuse("mm", "half-precision"),
    ):
        pass


# ---- fail


def test_a_failure_is_told_when_the_host_waits() -> None:
    with faults.fail("add", 507015):
        result = ones() + 1  # the call itself returns
        with pytest.raises(RuntimeError, match=r"507015") as error:
            torch.npu.synchronize()
    assert "error code is 507015" in str(error.value)
    torch.npu.synchronize()  # told once
    assert (result * 0 + 1).sum().item() == 16


@pytest.mark.parametrize(
    "wait",
    [
        lambda tensor: tensor.sum().item(), lambda tensor: tensor.cpu(), lambda tensor: tensor.tolist(),
        lambda tensor: torch.npu.current_stream().synchronize(), lambda tensor: torch.accelerator.synchronize(),
    ],
    ids=["item", "cpu", "tolist", "stream", "accelerator"],
)  # fmt: skip
def test_whatever_waits_tells_it(wait) -> None:
    with faults.fail("neg", 507015):
        tensor = -ones()
        with pytest.raises(RuntimeError, match="507015"):
            wait(tensor)


def test_a_failure_may_come_after_so_many_calls() -> None:
    with faults.fail("add", 507014, after=2):
        for _ in range(2):
            ones() + 1
            torch.npu.synchronize()
        ones() + 1
        with pytest.raises(RuntimeError, match="507014"):
            torch.npu.synchronize()


def test_a_failure_is_of_its_stream_and_card() -> None:
    side = torch.npu.Stream()
    with faults.fail("add", 507015), torch.npu.stream(side):
        ones() + 1
    torch.npu.default_stream().synchronize()
    torch.npu.synchronize(1)
    with pytest.raises(RuntimeError, match="507015"):
        side.synchronize()


def test_with_launch_blocking_the_call_itself_fails() -> None:
    code = """
        import json, torch
        from toprope.sim import faults
        x = torch.ones(2, device="npu")
        with faults.fail("add", 507015):
            try:
                x + 1
                told = ""
            except RuntimeError as error:
                told = str(error)
        torch.npu.synchronize()
        print(json.dumps(told))
    """
    assert "507015" in facts(code, ASCEND_LAUNCH_BLOCKING="1")
    assert "507015" in run(code, ASCEND_LAUNCH_BLOCKING="0").stderr


@pytest.mark.parametrize(("code", "after"), [(0, 0), (507015, -1)])
def test_a_failure_needs_a_code(code: int, after: int) -> None:
    with pytest.raises(UsageError, match="is no failure"), faults.fail("add", code, after):
        pass


# ---- out of memory, health, link


def test_one_allocation_fails_as_if_the_card_were_full() -> None:
    torch.npu.empty_cache()
    with faults.out_of_memory(after=2):
        kept = [torch.empty(2**18, device="npu") for _ in range(2)]
        with pytest.raises(torch.OutOfMemoryError, match=r"NPU out of memory\. Tried to allocate "):
            torch.empty(2**18, device="npu")
        kept.append(torch.empty(2**18, device="npu"))
    assert len(kept) == 3
    with pytest.raises(UsageError, match="is not a number of allocations"), faults.out_of_memory(-1):
        pass


def test_a_program_that_frees_and_tries_again_lives() -> None:
    def careful(size: int) -> int:
        while True:
            try:
                return torch.empty(size, device="npu").numel()
            except torch.OutOfMemoryError:
                size //= 2

    with faults.out_of_memory():
        assert careful(2**18) == 2**17


def test_a_card_that_is_not_well_fails_whatever_uses_it_and_the_other_is_well() -> None:
    with faults.unhealthy(1):
        with pytest.raises(RuntimeError, match="507033"):
            ones(device="npu:1").sum().item()
        assert ones().sum().item() == 16
    assert ones(device="npu:1").sum().item() == 16
    with pytest.raises(UsageError, match="there is no npu:2 that could be unhealthy"), faults.unhealthy(2):
        pass


def test_a_slow_link_takes_its_time_both_ways_and_not_on_the_card() -> None:
    data = torch.ones(2**20)  # 4 MiB

    def seconds(act) -> float:
        begin = time.monotonic()
        act()
        torch.npu.synchronize()
        return time.monotonic() - begin

    on_card = data.npu()
    with faults.slow_link("40MB"):
        assert seconds(data.npu) >= 0.1
        assert seconds(on_card.cpu) >= 0.1
    with faults.slow_link("40kB"):
        assert seconds(on_card.clone) < 30  # over the link it would take 105 s
    assert seconds(data.npu) < 30


# ---- for a program that is not to be changed


def test_the_variable_names_the_same_failures() -> None:
    code = """
        import json, torch
        told = []
        for act in (
            lambda: torch.ones(2, 2, dtype=torch.bfloat16, device="npu") @ torch.ones(2, 2, dtype=torch.bfloat16).npu(),
            lambda: (torch.ones(2, device="npu") + 1).cpu(),
            lambda: (torch.ones(2, device="npu") + 1).cpu(),
            lambda: torch.ones(2, device="npu:1").cpu(),
        ):
            try:
                act()
                told.append("")
            except RuntimeError as error:
                told.append(str(error))
        print(json.dumps(told))
    """
    spelt = "refuse(mm, bfloat16); fail(aten::add, 507015, after=1); unhealthy(1, code=507033)"
    refused, first, second, sick = facts(code, TOPROPE_SIM_FAULTS=spelt)
    assert "EZ1001" in refused
    assert first == ""
    assert "507015" in second
    assert "507033" in sick


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("burn(1)", "cannot be read at 'burn(1)'"),
        ("fail(add, 507015", "cannot be read at 'fail(add, 507015'"),
        ("fail(add)", "fail: fail() missing 1 required positional argument: 'code'"),
        ("refuse(mm, half)", "refuse: 'half' is not a dtype of torch."),
        ("unhealthy(7)", "unhealthy: there is no npu:7"),
        ("slow_link(fast)", "slow_link: 'fast' is not a size."),
    ],
)
def test_a_variable_that_cannot_be_read_is_one_clear_error(text: str, told: str) -> None:
    done = run("import torch", TOPROPE_SIM_FAULTS=text)
    assert done.returncode == 1
    assert "SettingError: TOPROPE_SIM_FAULTS=" in done.stderr
    assert told in done.stderr


def test_failures_may_be_gathered() -> None:
    with contextlib.ExitStack() as stack:
        stack.enter_context(faults.refuse("mm"))
        stack.enter_context(faults.fail("add", 507015))
    assert (ones() @ ones() + 1).sum().item() == 80

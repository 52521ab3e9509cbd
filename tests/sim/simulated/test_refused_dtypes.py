"""Dtypes that the chip's kernels refuse: the vendor's EZ1001 at the call, and nothing else is touched."""

import pytest
import torch

SIM = "910B3x2"

F64 = {"dtype": torch.float64, "device": "npu"}
C64 = {"dtype": torch.complex64, "device": "npu"}
INDEX = torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("call", "kernel", "dtype"),
    [
        (lambda: torch.ones(3, **F64).repeat_interleave(2), "aclnnRepeatInterleave", "DT_DOUBLE"),
        (lambda: torch.ones(3, **C64)[INDEX.npu()], "aclnnIndex", "DT_COMPLEX64"),
        (lambda: torch.ones(2, 2, **F64) @ torch.ones(2, 2, **F64), "aclnnM", "DT_DOUBLE"),
        (lambda: torch.ones(2, dtype=torch.complex128, device="npu").abs(), "aclnnAbs", "DT_COMPLEX128"),
    ],
    ids=["repeat_interleave", "index", "matmul", "abs"],
)
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_the_vendors_error_is_raised_at_the_call(call, kernel, dtype, mode):
    with mode(), pytest.raises(RuntimeError, match="error code is 161002") as error:
        call()
    text = str(error.value)
    assert kernel in text
    assert "ERR00100 PTA call acl api failed" in text
    assert "EZ1001): Tensor" in text
    assert f"not implemented for {dtype}, should be in dtype support list [" in text


def test_what_the_chip_takes_still_runs():
    x = torch.ones(3, device="npu", requires_grad=True)
    x.repeat_interleave(2).sum().backward()
    assert x.grad.tolist() == [2.0, 2.0, 2.0]
    assert (torch.ones(2, **F64) + 1).tolist() == [2.0, 2.0]
    assert torch.isclose(x, x + 1e-9).all()
    assert torch.stack([x, x]).shape == (2, 3)


def test_numbers_and_tensors_of_the_host_are_not_the_chips_business():
    x = torch.ones(3, device="npu")
    assert (x * torch.tensor(2.0, dtype=torch.float64)).tolist() == [2.0, 2.0, 2.0]
    assert torch.ones(3, dtype=torch.float64).repeat_interleave(2).sum() == 6


def test_a_refused_call_changes_nothing():
    before = torch.npu.memory_allocated()
    x = torch.ones(3, **F64)
    held = torch.npu.memory_allocated()
    for _ in range(20):
        with pytest.raises(RuntimeError, match="EZ1001"):
            x.repeat_interleave(2)
    assert torch.npu.memory_allocated() == held
    del x
    assert torch.npu.memory_allocated() == before


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.filterwarnings("ignore:.*TypedStorage:UserWarning")
def test_a_compiled_graph_is_refused_where_it_calls_a_kernel_of_the_vendor():
    """Not where Inductor makes a kernel of its own: a card's Triton kernel takes what aclnnAbs refuses."""
    x = torch.ones(2, 2, dtype=torch.int32, device="npu")
    compiled = torch.compile(lambda x: (x @ x).abs())
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"mm: NPU function error: call aclnnM.* error code is 161002"):
            compiled(x)
    assert compiled(x.float()).tolist() == [[2.0, 2.0], [2.0, 2.0]]

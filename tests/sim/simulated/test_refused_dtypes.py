"""Dtypes that the chip's kernels refuse: the vendor's EZ1001 at the call, and nothing else is touched.

Holds support/refusals.toml and csrc/core/documents.cpp against the vendor's error text. tests/sim/test_simulated.py
runs this module in a process with simulated cards.
"""

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


FP8 = torch.float8_e4m3fn
OF_RESULT = {
    "to": (lambda dtype: torch.ones(4, device="npu").to(dtype), "aclnnCast", FP8),
    "copy_": (lambda dtype: torch.empty(4, dtype=dtype, device="npu").copy_(torch.ones(4).npu()), "aclnnCast", FP8),
    "from": (lambda dtype: torch.empty(4, dtype=dtype, device="npu").float(), "aclnnCast", FP8),
    "zeros": (lambda dtype: torch.zeros(4, dtype=dtype, device="npu"), "aclnnInplaceZero", FP8),
    "full": (lambda dtype: torch.full((4,), 1, dtype=dtype, device="npu"), "aclnnInplaceFillScalar", FP8),
    "full_like": (lambda dtype: torch.full_like(torch.ones(4).npu(), 1, dtype=dtype), "aclnnInplaceFill", FP8),
    "rand": (lambda dtype: torch.rand(4, dtype=dtype, device="npu"), "aclnnInplaceUniform", FP8),
    "arange": (lambda dtype: torch.arange(4, dtype=dtype, device="npu"), "aclnnArange", torch.int16),
    "linspace": (lambda dtype: torch.linspace(0, 1, 4, dtype=dtype, device="npu"), "aclnnLinspace", torch.complex64),
    "eye": (lambda dtype: torch.eye(4, dtype=dtype, device="npu"), "aclnnEye", torch.float64),
    "sum": (lambda dtype: torch.ones(4, device="npu").sum(dtype=dtype), "aclnnReduceSum", torch.uint16),
    "sum of a dimension": (lambda dtype: torch.ones(4, device="npu").sum(0, dtype=dtype), "aclnnReduceSum", FP8),
    "mean": (lambda dtype: torch.ones(4, device="npu").mean(dtype=dtype), "aclnnMean", torch.bool),
    "cumprod": (lambda dtype: torch.ones(4, device="npu").cumprod(0, dtype=dtype), "aclnnCumprod", torch.complex64),
    "cumsum": (lambda dtype: torch.ones(4, device="npu").cumsum(0, dtype=dtype), "aclnnCumsum", torch.uint16),
    "logspace": (lambda dtype: torch.logspace(0, 1, 4, dtype=dtype, device="npu"), "aclnnLogSpace", torch.float64),
    "nansum": (lambda dtype: torch.ones(4, device="npu").nansum(dtype=dtype), "aclnnReduceNansum", torch.float64),
    "nansum of a dimension": (
        lambda dtype: torch.ones(4, device="npu").nansum(0, dtype=dtype),
        "aclnnReduceNansum",
        torch.float64,
    ),
    "softmax": (lambda dtype: torch.ones(4, device="npu").softmax(0, dtype=dtype), "aclnnCast", FP8),
}


@pytest.mark.parametrize(("call", "kernel", "dtype"), OF_RESULT.values(), ids=OF_RESULT)
def test_a_result_of_a_dtype_that_the_kernel_does_not_take_was_made(call, kernel, dtype):
    with pytest.raises(RuntimeError, match=rf"call {kernel}\w* failed, error code is 161002"):
        call(dtype)
    call(torch.float32)


def test_a_cast_that_is_refused_names_the_dtype_of_the_result():
    with pytest.raises(RuntimeError) as error:
        torch.ones(4, device="npu").to(FP8)
    text = "EZ1001): The param dtype not implemented for DT_FLOAT8_E4M3FN, should be in dtype support list [DT_FLOAT16,"
    assert text in str(error.value)


def test_memory_and_copies_to_and_from_the_host_take_every_dtype():
    held = torch.ones(4).to(FP8).npu()
    assert torch.empty_like(held).dtype == FP8
    assert held.cpu().float().tolist() == [1.0] * 4
    assert torch.ones(4).to("npu", FP8).dtype == FP8  # cast on the host


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_random_whole_numbers_without_a_sign_were_drawn(dtype):
    """https://github.com/Ascend/pytorch/issues/158: torch_npu looks up the largest number, also where one is given."""
    name = str(dtype).removeprefix("torch.ui").capitalize()
    for call in (
        lambda: torch.randint(0, 100, (1,), dtype=dtype, device="npu"),
        lambda: torch.empty(1, dtype=dtype, device="npu").random_(),
    ):
        with pytest.raises(RuntimeError, match=f"self scalar_type:UI{name.lower()}is not surpported.") as error:
            call()
        assert "ERR01002 OPS invalid type" in str(error.value)
    with pytest.raises(RuntimeError, match=r"call aclnnInplaceRandom failed, error code is 161002"):
        torch.empty(1, dtype=dtype, device="npu").random_(5)
    assert torch.randint(0, 100, (4,), dtype=torch.uint8, device="npu").max() < 100

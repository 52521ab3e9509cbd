"""Dtypes that torch's CPU kernels lack: computed in a wider one, and no error names a kernel of the CPU.

Holds csrc/torch/fallback.cpp against the CPU in a wider dtype. tests/sim/test_simulated.py runs this module in a
process with simulated cards.
"""

import re
import warnings
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map

SIM = "910B3"
DTYPES = (
    torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool,
)  # fmt: skip
OF_THE_HOST = re.compile(r"_cpu\b|\bCPU\b|(?<!\"rms_norm\" )not implemented for '")  # of torch's composition


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.int16, torch.int8, torch.uint8])
def test_models_with_experts_failed_at_the_histogram_of_integers(dtype: torch.dtype) -> None:
    counts = torch.histc(torch.tensor([0, 1, 2, 1], dtype=dtype, device="npu"), bins=4, min=0, max=3)
    assert counts.dtype == dtype
    assert counts.tolist() == [1, 2, 1, 0]


def test_an_error_named_a_kernel_of_the_cpu() -> None:
    x = torch.ones(2, 2, dtype=torch.int32, device="npu")
    with pytest.raises((NotImplementedError, RuntimeError)) as caught:
        torch.nn.functional.mse_loss(x, x)
    assert not OF_THE_HOST.search(str(caught.value))
    assert "aten::mse_loss" in str(caught.value) or "mse_loss: NPU function error" in str(caught.value)


def test_operators_in_place_and_lists_are_computed_wider_too() -> None:
    x = torch.tensor([0, 1, 2, 1], dtype=torch.int32, device="npu")
    out = torch.empty(0, dtype=torch.int32, device="npu")
    assert torch.histc(x, bins=2, min=0, max=3, out=out) is out
    assert out.tolist() == [3, 1]


def _sampled(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    size = (5, 6) if kind == "2d" else (4, 5, 6)
    image = torch.randn(2, 3, *size, generator=generator)
    return image, torch.rand(2, *size, len(size), generator=generator) * 2 - 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["2d", "3d"])
def test_positions_between_pixels_were_rounded_to_half_precision(kind: str, dtype: torch.dtype) -> None:
    image, grid = (x.to(dtype) for x in _sampled(kind))
    x = image.npu().requires_grad_()
    found = torch.nn.functional.grid_sample(x, grid.npu(), align_corners=False)
    found.sum().backward()
    exact = image.float().requires_grad_()
    wanted = torch.nn.functional.grid_sample(exact, grid.float(), align_corners=False)
    wanted.sum().backward()
    assert torch.equal(found.cpu(), wanted.to(dtype))
    assert x.grad is not None
    assert exact.grad is not None
    assert torch.equal(x.grad.cpu(), exact.grad.to(dtype))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_loss_of_logits_in_half_precision_was_rounded_at_every_step(reduction: str) -> None:
    logits, target = (torch.rand(10, 64, generator=torch.Generator().manual_seed(seed)).half() for seed in (1, 2))
    loss = torch.nn.functional.binary_cross_entropy_with_logits
    found = loss(logits.npu() * 10, target.npu(), reduction=reduction)
    wanted = loss((logits * 10).float(), target.float(), reduction=reduction)
    assert torch.equal(found.cpu(), wanted.half())


@pytest.mark.soak
def test_no_operator_of_torchs_database_names_a_kernel_of_the_cpu() -> None:
    pytest.importorskip("expecttest")
    wrong = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db

        for info in op_db:
            if "empty" in info.name or info.name.startswith(("jiterator", "to_sparse", "sparse")):
                continue
            if not info.dtypes:
                continue
            known = torch.float32 if torch.float32 in info.dtypes else next(iter(info.dtypes))
            try:
                sample = next(iter(info.sample_inputs("cpu", known)))
            except (NotImplementedError, StopIteration):
                continue
            wrong += [f"{info.name} {dtype}: {text}" for dtype in DTYPES if (text := _error(info, sample, dtype))]
    assert wrong == []


def _error(info: Any, sample: Any, dtype: torch.dtype) -> str:
    """The text of an error that names a kernel of the CPU; else empty."""
    if dtype in info.dtypes:
        return ""

    def move(item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            return item.to(dtype).to("npu") if item.is_floating_point() else item.to("npu")
        return torch.device("npu") if isinstance(item, torch.device) or item == "cpu" else item

    try:
        first, args, kwargs = tree_map(move, (sample.input, sample.args, sample.kwargs))
        info.op(first, *args, **kwargs)
    except Exception as error:
        return str(error).split("\n")[0] if OF_THE_HOST.search(str(error)) else ""
    return ""

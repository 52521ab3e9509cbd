"""Gradients that torch_npu computes by formulas of its own, against the host's.

Holds csrc/torch/gradients.cpp against the host's gradients. tests/sim/test_simulated.py runs this module in a process
with simulated cards.
"""

import pytest
import torch

SIM = "910B3"


def results(function, x, device):
    """The result and the gradient of a weighted sum of it, on the host."""
    x = x.detach().to(device).requires_grad_()
    y = function(x)
    real = torch.view_as_real(y) if y.is_complex() else y
    (real * torch.linspace(-1, 1, real.numel()).reshape(real.shape).to(device)).sum().backward()
    return y.detach().cpu(), x.grad.cpu()


@pytest.mark.parametrize("dim", [None, 1, -1])
@pytest.mark.parametrize("repeats", [3, [2], [1, 0, 2, 4]])
def test_repeat_interleave(repeats, dim):
    x = torch.randn(4, 4, 4) if dim is not None else torch.randn(4)

    def repeated(t):
        counts = torch.tensor(repeats, device=t.device) if isinstance(repeats, list) else repeats
        return t.repeat_interleave(counts, dim)

    for found, wanted in zip(results(repeated, x, "npu"), results(repeated, x, "cpu"), strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("each", [False, True])
def test_gradients_of_repeats_are_rounded_once(dtype, each):
    """Torch's composition adds 1,000 numbers one by one in half precision."""
    grad = torch.rand(2, 2000, 3).to(dtype)
    x = torch.rand(2, 2, 3, dtype=dtype, device="npu", requires_grad=True)
    repeats = torch.tensor([500, 1500], device="npu") if each else 1000
    x.repeat_interleave(repeats, 1).backward(grad.npu())
    ends = [500, 1500] if each else [1000, 1000]
    wanted = torch.stack([part.double().sum(1) for part in grad.split(ends, 1)], 1)
    torch.testing.assert_close(x.grad.cpu(), wanted.to(dtype))


def test_transforms_and_second_gradients_of_repeats():
    x = torch.randn(3, 4, device="npu", requires_grad=True)
    cubes = x.repeat_interleave(2, 1) ** 3
    (first,) = torch.autograd.grad(cubes.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(first.detach(), 6 * x.detach() ** 2)
    torch.testing.assert_close(second, 12 * x.detach())
    plain = x.detach()
    torch.testing.assert_close(torch.func.grad(lambda t: (t.repeat_interleave(2, 1) ** 3).sum())(plain), 6 * plain**2)
    assert torch.func.vmap(lambda t: t.repeat_interleave(2, 0))(plain).shape == (3, 8)


@pytest.mark.filterwarnings("ignore:A window was not provided")
@pytest.mark.parametrize(
    ("dtype", "onesided"), [(torch.float32, True), (torch.float32, False), (torch.complex64, False)]
)
@pytest.mark.parametrize("options", [{}, {"win_length": 6}, {"normalized": True}, {"center": False}, {"window": None}])
def test_stft(dtype, options, onesided):
    window = torch.rand(options.get("win_length", 8), dtype=dtype)
    options = {"center": True, "pad_mode": "constant", "onesided": onesided, "return_complex": True} | options
    x = torch.randn(2, 20, dtype=dtype)

    def transformed(t):
        return torch.stft(t, 8, hop_length=3, **{"window": window.to(t.device)} | options)

    for found, wanted in zip(results(transformed, x, "npu"), results(transformed, x, "cpu"), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_the_window_of_stft_has_a_gradient():
    window = torch.rand(8, device="npu", requires_grad=True)
    torch.stft(torch.randn(20, device="npu"), 8, window=window, return_complex=True).abs().sum().backward()
    assert window.grad.shape == (8,)

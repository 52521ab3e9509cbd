"""`numerics=card`: float32 reaches products and convolutions as HF32, where the program's settings allow it.

Holds csrc/torch/cube.cpp against HF32's mantissa by the vendor's page. tests/sim/test_simulated.py runs this module in
a process with simulated cards.
"""

from collections.abc import Callable, Iterator

import pytest
import torch

SIM = "910B3,numerics=card"
LAST_KEPT = 2.0**-11
"""Last place of HF32's mantissa at 1, by the vendor's page of --allow_hf32."""


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    yield
    torch.npu.matmul.allow_hf32 = False
    torch.npu.conv.allow_hf32 = True


def drawn(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def hf32(x: torch.Tensor) -> torch.Tensor:
    """By scaling alone: the whole part of a mantissa with 12 places in front of the point, halves to even."""
    mantissa, exponent = torch.frexp(x.double())
    return torch.ldexp((mantissa * 2**12).round() / 2**12, exponent).float()


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (1 + LAST_KEPT, 1 + LAST_KEPT),
        (1 + LAST_KEPT / 2, 1.0),
        (1 + LAST_KEPT * 1.5, 1 + 2 * LAST_KEPT),
        (-1 - LAST_KEPT * 0.75, -1 - LAST_KEPT),
        (float("inf"), float("inf")),
    ],
)
def test_a_factor_keeps_eleven_bits_and_halves_go_to_even(value: float, kept: float) -> None:
    torch.npu.matmul.allow_hf32 = True
    found = torch.mm(torch.full((1, 1), value).npu(), torch.ones(1, 1).npu())
    assert found.item() == kept


PRODUCTS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "mm": torch.mm,
    "addmm": lambda x, y: torch.addmm(torch.ones(8, 8, device=x.device), x, y),
    "bmm": lambda x, y: torch.bmm(x[None], y[None])[0],
    "baddbmm": lambda x, y: torch.baddbmm(torch.ones(1, 8, 8, device=x.device), x[None], y[None])[0],
    "mv": lambda x, y: torch.mv(x, y[:, 0]),
    "linear": lambda x, y: torch.nn.functional.linear(x, y.T),
    "einsum": lambda x, y: torch.einsum("ij,jk->ik", x, y),
    "out": lambda x, y: torch.mm(x, y, out=torch.empty(8, 8, device=x.device)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_take_hf32_only_where_the_program_allows_it(name: str) -> None:
    product, x, y = PRODUCTS[name], drawn(8, 16), drawn(16, 8, seed=2)
    torch.testing.assert_close(product(x.npu(), y.npu()).cpu(), product(x, y), rtol=1e-6, atol=1e-6)
    torch.npu.matmul.allow_hf32 = True
    found = product(x.npu(), y.npu()).cpu()
    torch.testing.assert_close(found, product(hf32(x), hf32(y)), rtol=1e-6, atol=1e-6)
    assert (found - product(x, y)).abs().max() > 1e-5


def test_convolutions_take_hf32_unless_the_program_forbids_it() -> None:
    x, weight = drawn(2, 4, 9), drawn(6, 4, 3, seed=2)

    def convolved(device: str, change: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
        leaf, kernel = (change(each).clone().to(device).requires_grad_() for each in (x, weight))
        result = torch.nn.functional.conv1d(leaf, kernel)
        result.backward(change(drawn(*result.shape, seed=3)).to(device))
        assert leaf.grad is not None
        assert kernel.grad is not None
        return [result.detach().cpu(), leaf.grad.cpu(), kernel.grad.cpu()]

    found, exact, short = (convolved("npu", lambda x: x), convolved("cpu", lambda x: x), convolved("cpu", hf32))
    for card, host, wanted in zip(found, exact, short, strict=True):
        torch.testing.assert_close(card, wanted, rtol=1e-5, atol=1e-5)
        assert (card - host).abs().max() > 1e-5
    torch.npu.conv.allow_hf32 = False
    for card, host in zip(convolved("npu", lambda x: x), exact, strict=True):
        torch.testing.assert_close(card, host, rtol=1e-6, atol=1e-6)


def test_half_precision_and_integers_are_left_alone() -> None:
    torch.npu.matmul.allow_hf32 = True
    x = drawn(64, 64).half()
    torch.testing.assert_close((x.npu() @ x.npu()).cpu(), (x.float() @ x.float()).half())


def test_rounding_takes_no_memory_of_the_card() -> None:
    torch.npu.matmul.allow_hf32 = True
    x = torch.ones(512, 512, device="npu")
    out = torch.empty_like(x)
    torch.npu.reset_peak_memory_stats()
    before = torch.npu.memory_allocated()
    torch.mm(x, x, out=out)
    assert torch.npu.max_memory_allocated() == before
    assert out[0, 0] == 512


def test_an_arithmetic_that_is_not_known_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="USE_FP16"):
        torch.npu.matmul.cube_math_type = torch.npu.npu_config.CubeMathType.USE_FP16
    assert torch.npu.matmul.cube_math_type is None

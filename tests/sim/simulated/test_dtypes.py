"""Dtypes: arithmetic, conversions, and that any tensor survives the way to the card and back.

Holds csrc/torch against the CPU's values. tests/sim/test_simulated.py runs this module in a process with simulated
cards.
"""

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies
from torch import nn
from torch.testing import assert_close

from against_cpu import CARD, assert_same, compare
from children import run

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")

REALS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
EIGHT_BITS = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
SIGNED = [torch.int64, torch.int32, torch.int16, torch.int8]
UNSIGNED = [torch.uint8, torch.uint16, torch.uint32, torch.uint64]
COMPLEX = [torch.complex128, torch.complex64, torch.complex32]
ALL = [*REALS, *EIGHT_BITS, *SIGNED, *UNSIGNED, *COMPLEX, torch.bool]


@pytest.mark.parametrize("dtype", REALS)
def test_reals(dtype: torch.dtype) -> None:
    a, b = torch.randn(6, 6, dtype=dtype, requires_grad=True), torch.randn(6, 6, dtype=dtype)
    compare(lambda a, b: (a @ b, a + b, a.softmax(-1), torch.tanh(a), a.sum(), a * 2.5, a.float()), a, b)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_layers_in_half_precision(dtype: torch.dtype) -> None:
    layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 2))
    layers.to(dtype)
    x = torch.randn(4, 8, dtype=dtype)
    host = layers(x)
    assert_same(layers.to(CARD)(x.to(CARD)), host)


@pytest.mark.parametrize("dtype", [*SIGNED, torch.uint8])
def test_integers(dtype: torch.dtype) -> None:
    a = torch.tensor([[1, 5, 100], [7, 9, 3]], dtype=dtype)
    compare(lambda a: (a + a, a * 3, a // 2, a % 4, a.sum(), a.max(), a / 2, a.sort(1), a @ a.mT, a << 1, a == 5), a)


@pytest.mark.parametrize("dtype", UNSIGNED)
def test_unsigned_integers(dtype: torch.dtype) -> None:
    a = torch.tensor([1, 5, 200], dtype=dtype)
    compare(lambda a: (a.float(), a.clone(), a == 5, a.view(torch.uint8)), a)
    assert_close(torch.tensor([1, 2], device=CARD).to("cpu", dtype), torch.tensor([1, 2], dtype=dtype))


@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_eight_bit_reals(dtype: torch.dtype) -> None:
    x = torch.randn(4, 4)
    compare(lambda x: (x.to(dtype).float(), x.to(dtype).view(torch.uint8), x.to(dtype).to(torch.bfloat16)), x)
    assert torch.zeros(2, dtype=dtype, device=CARD).device == CARD
    assert_close(x.to(CARD).to("cpu", dtype).float(), x.to(dtype).float())


def test_eight_bit_products() -> None:
    a, b = torch.randn(16, 32).to(torch.float8_e4m3fn), torch.randn(16, 32).to(torch.float8_e4m3fn)
    scale = torch.tensor(1.0)
    compare(lambda a, b, s: torch._scaled_mm(a, b.t(), s, s, out_dtype=torch.bfloat16), a, b, scale)
    compare(
        lambda a, b: torch._int_mm(a, b),
        torch.randint(-9, 9, (17, 16), dtype=torch.int8),
        torch.randint(-9, 9, (16, 8), dtype=torch.int8),
    )


@pytest.mark.parametrize(
    "source", [torch.float32, torch.bfloat16, torch.int32, torch.uint8, torch.bool, torch.complex64]
)
@pytest.mark.parametrize("target", [torch.float16, torch.int64, torch.int8, torch.bool])
@pytest.mark.filterwarnings("ignore:Casting complex values to real discards the imaginary part")
def test_conversions(source: torch.dtype, target: torch.dtype) -> None:
    compare(lambda t: (t.to(target), t.to(target, copy=True), t.type(target)), torch.tensor([0, 1, 2, 100]).to(source))


@pytest.mark.parametrize("source", [torch.float64, torch.float16, torch.int32])
def test_a_copy_converts_on_its_way(source: torch.dtype) -> None:
    host = torch.tensor([1.0, 2.5, -3.0]).to(source)
    card = torch.zeros(3, device=CARD).copy_(host)
    assert_same(card, host.float())
    back = torch.zeros(3, dtype=torch.int64).copy_(card)
    assert_close(back, host.long())
    assert_same(host.to(CARD, torch.bfloat16), host.to(torch.bfloat16))


def test_promotion() -> None:
    for one in (torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.bool):
        for other in (torch.float32, torch.float16, torch.int64, torch.complex64):
            host = torch.ones(2).to(one) * torch.ones(2).to(other)
            assert_same(torch.ones(2, device=CARD).to(one) * torch.ones(2, device=CARD).to(other), host)


def test_methods_named_after_dtypes() -> None:
    card = torch.tensor([1.5], device=CARD)
    made = [card.half(), card.bfloat16(), card.int(), card.long(), card.bool(), card.cfloat()]
    assert [t.dtype for t in made] == [
        torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.bool, torch.complex64,
    ]  # fmt: skip
    assert {t.device for t in made} == {CARD}


def test_a_tensor_of_the_card_asked_for_float64_becomes_float32() -> None:
    """As in torch_npu's _to_copy (ToKernelNpu.cpp); where a device is named too, float64 is what it is."""
    card = torch.tensor([1.5], device=CARD, requires_grad=True)
    made = card.double(), card.to(torch.float64), card.type(torch.float64), nn.Linear(1, 1).to(CARD).double().weight
    assert {t.dtype for t in made} == {torch.float32}
    code = "import torch; print((torch.ones(1, device='npu').double() * 1).dtype)"
    said = run(code)
    assert (said.stdout, said.stderr.count("Device do not support double dtype now")) == ("torch.float32\n", 1)
    assert run(code, TORCH_NPU_DISABLED_WARNING="1").stderr == ""
    made[0].sum().backward()
    assert card.grad is not None
    assert card.to("npu", torch.float64).dtype == torch.float64
    assert torch.tensor([1.5], dtype=torch.float64).to(CARD).double().dtype == torch.float64


def test_limits_and_special_values() -> None:
    values = torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0, -0.0, 1e-45, 3.4e38])
    compare(lambda t: (t + 1, t.isnan(), t.isinf(), t.nan_to_num(), t.half(), t.bfloat16(), t.signbit(), t * 0), values)


def test_factories() -> None:
    for dtype in (torch.float16, torch.int8, torch.bool, torch.complex64):
        options = {"dtype": dtype, "device": CARD}
        assert_same(torch.zeros(2, **options), torch.zeros(2, dtype=dtype))
        assert_same(torch.ones(2, **options), torch.ones(2, dtype=dtype))
        assert_same(torch.full((2,), 1, **options), torch.full((2,), 1, dtype=dtype))
        assert_same(torch.tensor([1, 0], **options), torch.tensor([1, 0], dtype=dtype))
        assert_same(torch.eye(2, **options), torch.eye(2, dtype=dtype))
    assert_same(torch.arange(0, 1, 0.25, device=CARD), torch.arange(0, 1, 0.25))
    assert_same(torch.arange(5, device=CARD), torch.arange(5))
    assert_same(torch.linspace(0, 1, 7, device=CARD), torch.linspace(0, 1, 7))
    assert_same(torch.logspace(0, 2, 3, device=CARD), torch.logspace(0, 2, 3))
    assert_same(torch.tril_indices(3, 3, device=CARD), torch.tril_indices(3, 3))
    assert_same(torch.as_tensor(np.arange(3.0), device=CARD), torch.arange(3.0, dtype=torch.float64))
    assert_same(torch.asarray([1, 2], device=CARD), torch.tensor([1, 2]))
    assert_same(torch.zeros(2, device=CARD).new_full((3,), 7), torch.full((3,), 7.0))
    assert torch.scalar_tensor(2.0, device=CARD).item() == 2.0


# ---- the way to the card and back


@strategies.composite
def strided(draw: strategies.DrawFn) -> torch.Tensor:
    """A tensor of any dtype with any small shape, order of dimensions, steps, offset and repeated dimension."""
    dtype = draw(strategies.sampled_from(ALL))
    sizes = draw(strategies.lists(strategies.integers(0, 4), max_size=4))
    steps = [draw(strategies.integers(1, 2)) for _ in sizes]
    base = torch.randint(0, 100, [size * step + 1 for size, step in zip(sizes, steps, strict=True)])
    tensor = base.to(dtype)[tuple(slice(1, None, step) for step in steps)]
    tensor = tensor.permute(draw(strategies.permutations(range(tensor.dim()))))
    return tensor.unsqueeze(0).expand(2, *tensor.shape) if draw(strategies.booleans()) else tensor


@hypothesis.given(strided())
def test_any_tensor_survives_the_way_to_the_card_and_back(host: torch.Tensor) -> None:
    card = host.to(CARD)
    assert card.device == CARD
    assert (card.dtype, card.shape) == (host.dtype, host.shape)
    assert card.stride() == host.clone().stride()
    back = card.cpu()
    assert back.stride() == card.stride()
    assert equal_bits(back, host)


@hypothesis.given(strided())
def test_any_view_of_the_card_is_read_and_written(host: torch.Tensor) -> None:
    whole = torch.empty(0, dtype=host.dtype).set_(host.untyped_storage())
    card_whole = whole.to(CARD)
    card = card_whole.as_strided(host.shape, host.stride(), host.storage_offset())
    assert equal_bits(card.cpu(), host)
    if 0 not in host.stride():
        fresh = host.clone(memory_format=torch.contiguous_format)
        card.zero_()
        card.copy_(fresh)
        assert equal_bits(card_whole.cpu(), whole)


def equal_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    one, other = one.clone(memory_format=torch.contiguous_format), other.clone(memory_format=torch.contiguous_format)
    return one.shape == other.shape and bytes(one.untyped_storage()) == bytes(other.untyped_storage())

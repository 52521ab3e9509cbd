"""Mixed precision: autocast and gradient scaling, through torch.amp and torch.npu.amp.

Holds sim/npu/amp and csrc/torch/autocast.cpp against torch_npu's scaler and float32 results.
tests/sim/test_simulated.py runs this module in a process with simulated cards.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from against_cpu import CARD, assert_same, on

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32

LOWER: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "matmul": lambda t: t @ t,
    "linear": lambda t: F.linear(t, t),
    "bmm": lambda t: torch.bmm(t[None], t[None]),
    "addmm": lambda t: torch.addmm(t, t, t),
    "conv1d": lambda t: F.conv1d(t[None], t[:, :, None]),
    "conv2d": lambda t: F.conv2d(t[None, None], t[None, None]),
    "conv_transpose2d": lambda t: F.conv_transpose2d(t[None, None], t[None, None]),
    "einsum": lambda t: torch.einsum("ij,jk->ik", t, t),
    "attention": lambda t: F.scaled_dot_product_attention(*[t[None, None]] * 3),
    "prelu": lambda t: F.prelu(t, t[0, :1]),
    "gru cell": lambda t: torch.gru_cell(t, t, t.repeat(3, 1), t.repeat(3, 1)),
}

SINGLE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "softmax": lambda t: t.softmax(-1),
    "log_softmax": lambda t: F.log_softmax(t, -1),
    "layer_norm": lambda t: F.layer_norm(t, (4,)),
    "exp": torch.exp,
    "pow": lambda t: t.abs() ** 1.5,
    "sum": torch.sum,
    "cumsum": lambda t: t.cumsum(0),
    "norm": torch.norm,
    "cross_entropy": lambda t: F.cross_entropy(t, torch.zeros(4, dtype=torch.long, device=t.device)),
    "mse_loss": lambda t: F.mse_loss(t, t * 2),
    "cosine_similarity": lambda t: F.cosine_similarity(t, t + 1),
}


def half(dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(4, 4, device=CARD, dtype=dtype)


@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize("name", LOWER)
def test_products_run_in_lower_precision(name: str, dtype: torch.dtype) -> None:
    with torch.autocast("npu", dtype=dtype):
        assert LOWER[name](half(FP32)).dtype == dtype


@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize("name", SINGLE)
def test_what_needs_precision_has_it(name: str, dtype: torch.dtype) -> None:
    with torch.autocast("npu", dtype=dtype):
        assert SINGLE[name](half(dtype)).dtype == FP32


def test_widest_type_wins_and_the_rest_stays() -> None:
    with torch.autocast("npu", dtype=BF16):
        assert torch.cat([half(BF16), half(FP32)]).dtype == FP32
        assert torch.addcmul(half(BF16), half(FP32), half(BF16)).dtype == FP32
        assert (half(BF16) + 1).dtype == BF16
        assert half(BF16).relu().dtype == BF16
        assert (
            torch.ones(2, 2, device=CARD, dtype=torch.float64) @ torch.ones(2, 2, device=CARD, dtype=torch.float64)
        ).dtype == torch.float64


def test_a_function_that_is_not_safe_is_refused() -> None:
    with torch.autocast("npu", dtype=FP16), pytest.raises(RuntimeError, match="unsafe to autocast"):
        F.binary_cross_entropy(half(FP16).sigmoid(), half(FP16).sigmoid())


def test_values_are_those_of_the_same_casts_by_hand() -> None:
    layer, x = nn.Linear(4, 3).to(CARD), half(FP32)
    with torch.autocast("npu", dtype=BF16):
        result = layer(x)
    by_hand = F.linear(x.to(BF16), layer.weight.to(BF16), layer.bias.to(BF16))
    assert_same(result, by_hand.detach().cpu())
    result.float().pow(2).sum().backward()
    assert layer.weight.grad.dtype == FP32
    by_hand.float().pow(2).sum().backward()


@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_a_model_gives_the_cpus_gradients(dtype: torch.dtype) -> None:
    host = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4), nn.LayerNorm(4))
    card = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4), nn.LayerNorm(4)).to(CARD)
    card.load_state_dict(host.state_dict())
    x, t = torch.randn(5, 8), torch.randint(0, 4, (5,))
    for model, device in ((host, "cpu"), (card, "npu")):
        with torch.autocast(device, dtype=dtype):
            value = F.cross_entropy(model(x.to(device)), t.to(device))
        assert value.dtype == FP32
        value.backward()
    assert_same([p.grad for p in card.parameters()], [p.grad for p in host.parameters()], rtol=0.02, atol=2e-3)


def test_defaults_nesting_and_switches() -> None:
    assert not torch.is_autocast_enabled("npu")
    with torch.amp.autocast("npu"):
        assert torch.is_autocast_enabled("npu")
        assert (half(FP32) @ half(FP32)).dtype == FP16
        with torch.autocast("npu", enabled=False):
            assert (half(FP32) @ half(FP32)).dtype == FP32
        with torch.autocast("npu", dtype=BF16):
            assert (half(FP32) @ half(FP32)).dtype == BF16
        assert not torch.is_autocast_enabled("cpu")
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == FP32
    assert not torch.is_autocast_enabled("npu")
    with torch.autocast("cpu", dtype=BF16):
        assert (half(FP32) @ half(FP32)).dtype == FP32

    @torch.autocast("npu", dtype=BF16)
    def decorated() -> torch.Tensor:
        return half(FP32) @ half(FP32)

    assert decorated().dtype == BF16
    assert torch.get_autocast_dtype("npu") == FP16
    assert torch.amp.is_autocast_available("npu")


def test_a_dtype_that_the_card_cannot_autocast_to_is_refused_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="Supported dtypes|not support"), torch.autocast("npu", dtype=torch.float64):
        assert not torch.is_autocast_enabled("npu")


def test_weights_are_cast_once() -> None:
    layer, x = nn.Linear(4, 4).to(CARD), half(FP32)
    with torch.autocast("npu", dtype=BF16):
        layer(x)
        first = torch.npu.memory_allocated()
        results = [layer(x) for _ in range(3)]
        grown = torch.npu.memory_allocated() - first
    kept = sum(result.untyped_storage().nbytes() for result in results)
    assert kept <= grown <= 3 * 1024  # the results, rounded up; no second copy of the weights in each step
    assert torch.is_autocast_cache_enabled()


class Square(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="npu", cast_inputs=FP32)
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x)
        return x @ x

    @staticmethod
    @torch.amp.custom_bwd(device_type="npu")
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        (x,) = ctx.saved_tensors
        return gradient @ x.T + x.T @ gradient


def test_functions_of_ones_own() -> None:
    x = half(FP16).requires_grad_()
    with torch.autocast("npu", dtype=FP16):
        result = Square.apply(x)
    assert result.dtype == FP32
    result.sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == FP16


# ---- gradient scaling


def scalers() -> list[Callable[..., torch.amp.GradScaler]]:
    return [lambda **options: torch.amp.GradScaler("npu", **options), torch.npu.amp.GradScaler]


@pytest.mark.parametrize("make", scalers())
def test_scaled_training_is_plain_training(make: Callable[..., torch.amp.GradScaler]) -> None:
    host, card = nn.Linear(4, 1), nn.Linear(4, 1).to(CARD)
    card.load_state_dict(host.state_dict())
    plain, scaled = torch.optim.SGD(host.parameters(), 0.1), torch.optim.SGD(card.parameters(), 0.1)
    scaler = make(init_scale=1024.0)
    for _ in range(3):
        x = torch.randn(8, 4)
        plain.zero_grad()
        scaled.zero_grad()
        host(x).pow(2).mean().backward()
        plain.step()
        scaler.scale(card(x.to(CARD)).pow(2).mean()).backward()
        scaler.unscale_(scaled)
        nn.utils.clip_grad_norm_(card.parameters(), 1e6)
        scaler.step(scaled)
        scaler.update()
    assert_same(list(card.parameters()), list(host.parameters()))
    assert scaler.get_scale() == 1024.0


@pytest.mark.parametrize(("make", "fused"), [(make, False) for make in scalers()] + [(scalers()[0], True)])
def test_a_step_with_infinite_gradients_is_left_out(make: Callable[..., torch.amp.GradScaler], fused: bool) -> None:
    weight = nn.Parameter(torch.ones(2, device=CARD))
    optimizer = torch.optim.AdamW([weight], 0.1, fused=fused)
    scaler = make(init_scale=8.0, growth_interval=2, backoff_factor=0.25)
    scaler.scale((weight * float("inf")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert_same(weight, torch.ones(2))
    assert scaler.get_scale() == 2.0
    for _ in range(2):
        optimizer.zero_grad()
        scaler.scale(weight.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 4.0
    assert (weight < 1).all()


def test_the_state_of_a_scaler_is_kept() -> None:
    scaler = torch.npu.amp.GradScaler(init_scale=4.0, dynamic=False)
    scaler.scale(torch.ones(1, device=CARD))
    other = torch.npu.amp.GradScaler()
    other.load_state_dict(scaler.state_dict())
    assert other.get_scale() == 4.0
    assert other.state_dict()["dynamic"] is False
    assert_same(on(CARD, torch.ones(1)) * 0 + other.scale(torch.ones(1, device=CARD)), torch.full((1,), 4.0))


def test_a_scaler_that_is_off_or_static() -> None:
    off = torch.npu.amp.GradScaler(enabled=False)
    one = torch.ones(1, device=CARD)
    assert off.scale(one) is one
    assert off.get_scale() == 1.0
    static = torch.npu.amp.GradScaler(init_scale=16.0, dynamic=False)
    weight = nn.Parameter(torch.ones(2, device=CARD))
    optimizer = torch.optim.SGD([weight], 0.1)
    static.scale((weight * float("inf")).sum()).backward()
    static.step(optimizer)
    static.update()
    assert static.get_scale() == 16.0
    assert torch.isinf(weight).all()  # nothing is looked at, so the step is made


def test_an_infinite_gradient_left_out_the_step_of_one_optimizer_only(capsys: pytest.CaptureFixture[str]) -> None:
    weights = [nn.Parameter(torch.ones(2, device=CARD)) for _ in range(3)]
    optimizers = [torch.optim.SGD([weight], 1.0) for weight in weights]
    scaler = torch.npu.amp.GradScaler(init_scale=8.0, growth_interval=1)
    factors = 1.0, float("inf"), 1.0
    scaler.scale(sum((weight * by).sum() for weight, by in zip(weights, factors, strict=True))).backward()
    for optimizer in optimizers:
        scaler.step(optimizer)
    assert [weight.tolist() for weight in weights] == [[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]
    scaler.update()
    optimizers[0].zero_grad()
    scaler.scale(weights[0].sum()).backward()
    scaler.step(optimizers[0])
    scaler.update()
    assert weights[0].tolist() == [-1.0, -1.0]
    assert capsys.readouterr().out.splitlines() == [
        "Gradient overflow. Skipping step", "Gradient overflow. Skipping step",
        "Loss scaler reducing loss scale to 4.0", "Loss scaler increasing loss scale to 8.0",
    ]  # fmt: skip


def test_a_scaler_refuses_what_torch_npus_refuses() -> None:
    scaler = torch.npu.amp.GradScaler()
    with pytest.raises(ValueError, match="Device type of outputs should be npu"):
        scaler.scale([torch.ones(1)])
    with pytest.raises(ValueError, match="growth factor must be > 1"):
        torch.npu.amp.GradScaler(growth_factor=1.0)
    weight = nn.Parameter(torch.ones(2, device=CARD))
    scaler.scale(weight.sum()).backward()
    with pytest.raises(TypeError, match="grad_scaler"):
        scaler.step(torch.optim.AdamW([weight], fused=True))
    half = nn.Parameter(torch.ones(2, device=CARD, dtype=FP16))
    half.sum().backward()
    with pytest.raises(TypeError, match="Attempting to unscale FP16 gradients"):
        scaler.unscale_(torch.optim.SGD([half], 1.0))


# ---- the names of torch_npu


@pytest.mark.parametrize(
    ("context", "dtype"),
    [
        (lambda: torch.npu.amp.autocast(), FP16),
        (lambda: torch.npu.amp.autocast(dtype=BF16), BF16),
        (lambda: torch.npu.amp.autocast(enabled=False), FP32),
    ],
)
def test_autocast_of_torch_npu(context: Callable[[], AbstractContextManager[object]], dtype: torch.dtype) -> None:
    with context():
        assert (half(FP32) @ half(FP32)).dtype == dtype


@pytest.mark.filterwarnings("ignore:torch.npu.amp.custom_:FutureWarning")
def test_switches_of_torch_npu() -> None:
    assert not torch.npu.is_autocast_enabled()
    torch.npu.set_autocast_enabled(True)
    torch.npu.set_autocast_dtype(BF16)
    try:
        assert torch.npu.is_autocast_enabled()
        assert torch.npu.get_autocast_dtype() == BF16
        assert (half(FP32) @ half(FP32)).dtype == BF16
    finally:
        torch.npu.set_autocast_enabled(False)
        torch.npu.set_autocast_dtype(FP16)
    assert {FP16, BF16} <= set(torch.npu.get_amp_supported_dtype())

    class Cast(torch.autograd.Function):
        @staticmethod
        @torch.npu.amp.custom_fwd(cast_inputs=FP32)
        def forward(ctx, x):  # type: ignore[no-untyped-def]
            assert not torch.is_autocast_enabled("npu")
            return x * 2

        @staticmethod
        @torch.npu.amp.custom_bwd
        def backward(ctx, gradient):  # type: ignore[no-untyped-def]
            return gradient * 2

    with torch.npu.amp.autocast():
        assert Cast.apply(half(FP16).requires_grad_()).dtype == FP32

"""torch.compile without code generation: the backends eager and aot_eager.

Holds csrc/torch against results without torch.compile. tests/sim/test_simulated.py runs this module in a process with
simulated cards.
"""

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from against_cpu import CARD, HostGeneratorUntouched, assert_same, compare

BACKENDS = ["eager", "aot_eager"]
SECOND = torch.device("npu:1")

# torch warns about itself while it traces.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")


@pytest.fixture(autouse=True)
def nothing_compiled(known_state: None) -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(function: Callable[..., torch.Tensor], backend: str) -> Callable[..., torch.Tensor]:
    return torch.compile(function, backend=backend, fullgraph=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_function_and_its_gradients(backend: str) -> None:
    compare(
        compiled(lambda x, w: torch.relu(x @ w + 1).sum(0), backend),
        torch.randn(4, 4, requires_grad=True),
        torch.randn(4, 4, requires_grad=True),
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_writes_in_place(backend: str) -> None:
    def go(x: torch.Tensor) -> torch.Tensor:
        x[:, 0].mul_(2)
        y = x.view(-1)
        y[1] = 5
        return y + 1

    compare(compiled(go, backend), torch.randn(3, 4))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_model_learns_the_same(backend: str) -> None:
    plain = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 1)).to(CARD)
    traced = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 1)).to(CARD)
    traced.load_state_dict(plain.state_dict())
    run = torch.compile(traced, backend=backend, fullgraph=True)
    x = torch.randn(5, 4, device=CARD)
    for model, forward in ((plain, plain), (traced, run)):
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        for _ in range(2):
            optimizer.zero_grad()
            forward(x).pow(2).mean().backward()
            optimizer.step()
    assert_same(list(traced.parameters()), [p.detach().cpu() for p in plain.parameters()], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_devices_are_known_while_tracing(backend: str) -> None:
    def go(x: torch.Tensor) -> torch.Tensor:
        y = torch.ones(2, device="npu") + torch.arange(2, device=x.device)
        if x.is_npu and x.device.type == "npu":
            y = y + 1
        return y.to("cpu").npu() + x

    assert_same(compiled(go, backend)(torch.zeros(2, device=CARD)), torch.tensor([2.0, 3.0]))


@pytest.mark.parametrize("backend", BACKENDS)
def test_another_card_and_another_shape(backend: str) -> None:
    run = torch.compile(lambda x: (x * 2).sum(0), backend=backend, fullgraph=True)
    for device in (CARD, SECOND):
        for rows in (2, 3, 5):
            x = torch.randn(rows, 3, device=device)
            assert_same(run(x), (x * 2).sum(0).cpu(), device)


@pytest.mark.parametrize("backend", BACKENDS)
def test_attention_and_autocast(backend: str) -> None:
    def go(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("npu", dtype=torch.bfloat16):
            return F.scaled_dot_product_attention(x @ x.mT @ x, x, x, is_causal=True)

    x = torch.randn(1, 2, 8, 8, device=CARD)
    result = compiled(go, backend)(x)
    assert result.dtype == torch.bfloat16
    assert_same(result.float(), go(x).float().cpu(), rtol=0.05, atol=0.05)


def test_dropout_draws_from_the_card() -> None:
    run = compiled(lambda x: F.dropout(x) * 2, "aot_eager")
    x = torch.ones(200, device=CARD)
    with HostGeneratorUntouched():
        torch.npu.manual_seed(1)
        first = run(x)
        second = run(x)
        torch.npu.manual_seed(1)
        again = run(x)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert 50 < (first == 0).sum() < 150


def test_a_break_in_the_graph() -> None:
    def go(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return y + 1 if y.sum().item() > 0 else y - 1

    run = torch.compile(go, backend="aot_eager")
    assert_same(run(torch.ones(2, device=CARD)), torch.full((2,), 3.0))
    assert_same(run(-torch.ones(2, device=CARD)), torch.full((2,), -3.0))


def test_operands_on_two_devices_are_refused_while_tracing() -> None:
    run = compiled(lambda x, y: x + y, "aot_eager")
    with pytest.raises(
        (torch._dynamo.exc.TorchRuntimeError, torch._dynamo.exc.Unsupported, RuntimeError), match="device"
    ):
        run(torch.ones(2, device=CARD), torch.ones(2))


def test_a_device_context_is_traced() -> None:
    def go(x: torch.Tensor) -> torch.Tensor:
        with torch.device("npu:1"):
            return torch.ones(2) + x

    assert_same(torch.compile(go, backend="eager")(torch.zeros(2, device=SECOND)), torch.ones(2), SECOND)

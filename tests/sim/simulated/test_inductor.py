"""torch.compile with inductor: its C++ kernels run on the card's bytes.

Holds sim/inductor against results without torch.compile. tests/sim/test_simulated.py runs this module in a process with
simulated cards.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import toprope.sim

SIM = "910B3x2,refuse=off"
ENVIRONMENT = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}

# torch warns about itself while it compiles.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
    pytest.mark.filterwarnings("ignore:.*TypedStorage:UserWarning"),
]


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled anew each time, in this process: what is tried is the compiler, not the cache."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()


def test_dynamo_knows_the_card() -> None:
    from torch._dynamo.device_interface import get_interface_for_device

    interface = get_interface_for_device("npu")
    assert (interface.is_available(), interface.device_count()) == (True, 2)


def test_decompositions_see_the_features_of_the_hosts_backend() -> None:
    """They ask before a graph is the host's: masked_scatter was an internal error."""
    from torch._inductor import compile_fx  # noqa: F401  the card is registered when it is imported
    from torch._inductor.codegen.common import get_backend_features

    assert get_backend_features("npu") == get_backend_features("cpu")


class Block(nn.Module):
    """Normalisation, attention, dropout: each failed, since Inductor took the card for a GPU with Triton."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out, self.dropout = nn.LayerNorm(16), nn.Linear(16, 16), nn.Dropout(0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.norm(x).unflatten(-1, (2, 8)).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(heads, heads, heads, is_causal=True).transpose(1, 2).flatten(2)
        result: torch.Tensor = (x + self.dropout(self.out(mixed))).softmax(-1)
        return result


def cross_entropy(x: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x.flatten(0, -2), torch.zeros(x.numel() // x.shape[-1], dtype=torch.long, device=x.device))


MODULES: dict[str, Callable[[], Callable[[torch.Tensor], torch.Tensor]]] = {
    "layer norm": lambda: nn.LayerNorm(16),
    "rms norm": lambda: nn.RMSNorm(16),
    "softmax": lambda: nn.Softmax(-1),
    "mean": lambda: lambda x: (x - x.mean()).abs(),
    "convolution and batch norm": lambda: nn.Sequential(nn.Conv1d(8, 4, 3), nn.BatchNorm1d(4), nn.ReLU()),
    "in two dimensions": lambda: nn.Sequential(nn.Unflatten(-1, (4, 4)), nn.Conv2d(8, 4, 3), nn.BatchNorm2d(4)),
    "attention": lambda: lambda x: F.scaled_dot_product_attention(x, x.flip(1), x * 2, is_causal=True),
    "encoder layer": lambda: nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True),
    "cross entropy": lambda: cross_entropy,
    "sort and topk": lambda: lambda x: torch.sort(x, -1)[0] * torch.topk(x, 3)[0].sum(),
    "boolean index": lambda: lambda x: x[x.sum(-1) > 8],
    "masked scatter": lambda: lambda x: x.masked_scatter(x > 0.5, x.flip(0)),
    "condition": lambda: lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)),
}


def trained(make: Callable[[], Callable[[torch.Tensor], torch.Tensor]], device: str) -> list[torch.Tensor]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    module = make()
    if isinstance(module, nn.Module):
        module.to(device)
    x = torch.rand(2, 8, 16).to(device).requires_grad_()
    result = torch.compile(module)(x)
    assert result.device.type == device
    result.square().sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    found = [result, x.grad]
    if isinstance(module, nn.Module):
        found += [*(each.grad for each in module.parameters() if each.grad is not None), *module.buffers()]
    return [each.detach().cpu() for each in found]


@pytest.mark.usefixtures("own_cache")
def test_a_compiled_block_in_training_was_an_internal_error_of_inductor() -> None:
    for on_card, on_host in zip(trained(Block, "npu"), trained(Block, "cpu"), strict=True):
        torch.testing.assert_close(on_card, on_host)


@pytest.mark.usefixtures("own_cache")
@pytest.mark.filterwarnings("ignore::UserWarning:transformers", "ignore::FutureWarning")
def test_a_compiled_model_of_transformers_learns_as_on_the_host() -> None:
    """Rotary embedding, RMSNorm, grouped attention, gated layers, cross entropy and the optimizer's three steps."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32,
    )  # fmt: skip

    def learned(device: str) -> list[torch.Tensor]:
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = LlamaForCausalLM(config).to(device)
        call, optimizer = torch.compile(model), torch.optim.AdamW(model.parameters(), 1e-2)
        tokens, losses = (torch.arange(24).reshape(2, 12) * 7 % 64).to(device), []
        for _ in range(3):
            optimizer.zero_grad()
            losses.append(call(input_ids=tokens, labels=tokens).loss)
            losses[-1].backward()
            optimizer.step()
        return [each.detach().cpu() for each in (*losses, *model.parameters())]

    on_card = learned("npu")
    assert on_card[2] < on_card[0]
    for card, host in zip(on_card, learned("cpu"), strict=True):
        torch.testing.assert_close(card, host, rtol=1e-3, atol=1e-4)


@pytest.mark.usefixtures("own_cache")
def test_kernels_of_compiled_graphs_were_not_in_the_time() -> None:
    @torch.compile
    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return (x @ weight).relu() * 2

    x, weight = torch.ones(8, 16, device="npu"), torch.ones(16, 4, device="npu")
    function(x, weight)
    with toprope.sim.rehearse() as r, toprope.sim.trace() as t:
        function(x, weight)
    calls = [t.trace.calls[each.signature - 1] for each in t.records if each.act == "composite"]
    shapes = {call.name: [(each.sizes, each.role) for each in call.tensors] for call in calls}
    assert shapes["aten::mm"] == [((8, 16), "read"), ((16, 4), "read"), ((8, 4), "result")]
    assert ((8, 4), "result") in shapes["inductor::generated_kernels"]
    assert {((8, 16), "read"), ((16, 4), "read")} <= set(shapes["inductor::generated_kernels"])
    assert r.timing.generated == 1
    assert r.timing.calls["matmul"] == 1


@pytest.mark.soak
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("name", MODULES)
def test_modules_compile_as_on_the_host(name: str) -> None:
    for on_card, on_host in zip(trained(MODULES[name], "npu"), trained(MODULES[name], "cpu"), strict=True):
        torch.testing.assert_close(on_card, on_host)


@pytest.mark.usefixtures("own_cache")
def test_results_are_the_cards_memory_and_copies_to_the_host_are_copies() -> None:
    @torch.compile
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x * 2, x.cpu(), x, x[1:]

    x = torch.arange(1 << 18, dtype=torch.float32, device="npu:1")
    function(x)
    before = torch.npu.memory_allocated(1)  # type: ignore[attr-defined]
    doubled, copy, same, part = function(x)
    grown = torch.npu.memory_allocated(1) - before  # type: ignore[attr-defined]
    assert x.nbytes <= grown <= x.nbytes + 4096  # the allocator's alignment
    assert [each.device.type for each in (doubled, copy, same, part)] == ["npu", "cpu", "npu", "npu"]
    assert same is x
    assert part.data_ptr() == x[1:].data_ptr()
    copy.zero_()
    assert x[-1].item() == (1 << 18) - 1
    torch.testing.assert_close(doubled, x * 2)


@pytest.mark.usefixtures("own_cache")
def test_a_graph_releases_what_it_has_read_as_eager_mode_does() -> None:
    """All inputs of a graph were kept to its end: the peak of this backward was half as high again."""

    def function(x: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            x = (x @ x).sin()
        return x.sum()

    def peak(call: Callable[[torch.Tensor], torch.Tensor]) -> int:
        loss = call(torch.ones(512, 512, device="npu", requires_grad=True))
        before = torch.npu.memory_allocated()  # type: ignore[attr-defined]
        torch.npu.reset_peak_memory_stats()  # type: ignore[attr-defined]
        loss.backward()  # type: ignore[no-untyped-call]
        return int(torch.npu.max_memory_allocated()) - before  # type: ignore[attr-defined]

    compiled = torch.compile(function)
    peak(compiled)
    assert peak(compiled) == peak(function)


@pytest.mark.usefixtures("own_cache")
def test_compiled_dropout_draws_from_the_cards_generator() -> None:
    dropout = torch.compile(nn.Dropout(0.5))
    x = torch.ones(64, 64, device="npu", requires_grad=True)
    drawn = []
    for seed in (3, 3, None):
        if seed is not None:
            torch.npu.manual_seed(seed)  # type: ignore[attr-defined]
        drawn.append(dropout(x))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[1], drawn[2])
    assert 0.4 < (drawn[0] == 0).float().mean().item() < 0.6
    drawn[0].sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, drawn[0])


@pytest.mark.soak
@pytest.mark.usefixtures("own_cache")
def test_a_small_function_is_one_kernel_and_computes_the_same() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x.sin() + y * 2).relu().sum(-1)

    x, y = torch.randn(4, 33), torch.randn(33)
    compiled = torch.compile(function)
    on_card = (x.npu(), y.npu())
    result = compiled(*on_card)
    assert result.device == torch.device("npu:0")
    torch.testing.assert_close(result.cpu(), function(x, y))
    # its operators are fused into a kernel of inductor's, which is no operator of the card's
    with toprope.sim.trace() as recorded:
        compiled(*on_card)
    assert not {"aten::sin", "aten::add", "aten::relu", "aten::sum"} & {
        record.name for record in recorded.trace.operators()
    }


@pytest.mark.soak
@pytest.mark.usefixtures("own_cache")
def test_a_layer_on_another_card_than_the_current_one_learns_the_same() -> None:
    def step(device: str, backend: str | None) -> list[torch.Tensor]:
        torch.manual_seed(0)
        layer = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).to(device)
        call = layer if backend is None else torch.compile(layer, backend=backend)
        call(torch.ones(3, 8, device=device)).square().mean().backward()
        return [parameter.grad.cpu() for parameter in layer.parameters()]

    for compiled, plain in zip(step("npu:1", "inductor"), step("cpu", None), strict=True):
        torch.testing.assert_close(compiled, plain)


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_products_in_half_precision_were_added_up_as_the_host_does(dtype: torch.dtype) -> None:
    """The card adds up in float32 and rounds once: what a compiled graph multiplies is what eager mode multiplies."""
    torch.manual_seed(0)
    x, y, bias = (torch.rand(2, 256, 256, device="npu").to(dtype) for _ in range(3))

    def products(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor) -> list[torch.Tensor]:
        return [
            x[0] @ y[0], torch.addmm(bias[0], x[0], y[0], beta=0.5), x @ y, torch.baddbmm(bias, x, y, alpha=2),
        ]  # fmt: skip

    for compiled, eager in zip(torch.compile(products)(x, y, bias), products(x, y, bias), strict=True):
        assert torch.equal(compiled, eager)


def test_products_of_the_host_stay_the_hosts() -> None:
    x, y = (torch.rand(256, 256).to(torch.float16) for _ in range(2))
    assert torch.equal(torch.compile(torch.mm)(x, y), x @ y)

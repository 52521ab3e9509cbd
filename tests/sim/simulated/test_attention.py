"""Attention: every way that torch may take on a device gives the CPU's results and gradients.

Holds csrc/torch against the CPU's results and gradients. tests/sim/test_simulated.py runs this module in a process with
simulated cards.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from against_cpu import CARD, HostGeneratorUntouched, assert_same, compare, compare_module, on

MATH, OVERRIDEABLE = SDPBackend.MATH, SDPBackend.OVERRIDEABLE
CLOSE = {"rtol": 1e-5, "atol": 1e-5}  # flash and plain sums run in another order


def inputs(heads: int = 4, length: int = 8, **options: object) -> list[torch.Tensor]:
    shapes = [(2, 4, 8, 16), (2, heads, length, 16), (2, heads, length, 16)]
    return [torch.randn(shape, requires_grad=True, **options) for shape in shapes]


class Seen(TorchDispatchMode):
    """Context that keeps the names of the operators in it."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.append(operator.name())
        return operator(*args, **(kwargs or {}))


def chosen(*tensors: torch.Tensor, **options: object) -> int:
    return torch._fused_sdp_choice(*tensors, **options)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [8, 5])
def test_fused(causal: bool, length: int) -> None:
    assert chosen(*on(CARD, inputs(length=length)), is_causal=causal) == OVERRIDEABLE.value
    compare(lambda *qkv: F.scaled_dot_product_attention(*qkv, is_causal=causal), *inputs(length=length), **CLOSE)


def test_torch_runs_the_operator_that_is_chosen() -> None:
    with Seen() as seen:
        F.scaled_dot_product_attention(*on(CARD, inputs())).sum().backward()
    assert "aten::_scaled_dot_product_fused_attention_overrideable" in seen.names
    assert "aten::_scaled_dot_product_fused_attention_overrideable_backward" in seen.names
    with Seen() as seen, sdpa_kernel(MATH):
        F.scaled_dot_product_attention(*on(CARD, inputs()))
    assert "aten::bmm" in seen.names


@pytest.mark.parametrize("causal", [False, True])
def test_math(causal: bool) -> None:
    with sdpa_kernel(MATH):
        assert chosen(*on(CARD, inputs()), is_causal=causal) == MATH.value
        compare(lambda *qkv: F.scaled_dot_product_attention(*qkv, is_causal=causal), *inputs(), **CLOSE)


def test_fused_and_math_agree() -> None:
    card = on(CARD, inputs())
    fused = F.scaled_dot_product_attention(*card, scale=0.3)
    with sdpa_kernel(MATH):
        assert_same(fused, F.scaled_dot_product_attention(*card, scale=0.3).cpu(), **CLOSE)


@pytest.mark.parametrize("shape", [(8, 8), (1, 1, 8, 8), (2, 1, 8, 8), (2, 4, 8, 8)])
@pytest.mark.parametrize("truth", [False, True])
def test_mask(shape: tuple[int, ...], truth: bool) -> None:
    mask = torch.rand(shape) > 0.3 if truth else torch.randn(shape)
    if truth:
        mask[..., 0] = True
    compare(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), *inputs(), mask, **CLOSE)


def test_a_mask_that_needs_a_gradient_gets_it() -> None:
    mask = torch.randn(2, 1, 8, 8, requires_grad=True)
    assert chosen(*on(CARD, [*inputs(), mask])) == MATH.value
    compare(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), *inputs(), mask, **CLOSE)


@pytest.mark.parametrize("causal", [False, True])
def test_groups_of_heads(causal: bool) -> None:
    compare(
        lambda *qkv: F.scaled_dot_product_attention(*qkv, is_causal=causal, enable_gqa=True), *inputs(heads=2), **CLOSE
    )


@pytest.mark.parametrize("shape", [(3, 8, 16), (8, 16)])
def test_fewer_dimensions(shape: tuple[int, ...]) -> None:
    qkv = [torch.randn(shape, requires_grad=True) for _ in range(3)]
    compare(F.scaled_dot_product_attention, *qkv, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes(dtype: torch.dtype) -> None:
    compare(F.scaled_dot_product_attention, *inputs(dtype=dtype), **(CLOSE if dtype == torch.float64 else {}))


def test_an_operator_that_is_not_there_is_refused_as_on_the_cpu() -> None:
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION), pytest.raises(RuntimeError, match="No viable backend"):
        F.scaled_dot_product_attention(*on(CARD, inputs()))


def test_dropout_draws_from_the_card() -> None:
    card = on(CARD, inputs())
    with HostGeneratorUntouched():
        torch.npu.manual_seed(3)
        first = F.scaled_dot_product_attention(*card, dropout_p=0.5)
        torch.npu.manual_seed(3)
        again = F.scaled_dot_product_attention(*card, dropout_p=0.5)
    assert torch.equal(first, again)
    assert not torch.equal(first, F.scaled_dot_product_attention(*card, dropout_p=0.5))
    first.sum().backward()
    assert card[2].grad.device == CARD


def test_operands_on_two_devices_are_refused() -> None:
    query, key, value = inputs()
    with pytest.raises(RuntimeError, match=r"device"):
        F.scaled_dot_product_attention(query.to(CARD), key, value)


@pytest.mark.parametrize("batch_first", [False, True])
def test_multi_head_attention(batch_first: bool) -> None:
    layer = nn.MultiheadAttention(16, 4, batch_first=batch_first)
    copy = nn.MultiheadAttention(16, 4, batch_first=batch_first).to(CARD)
    copy.load_state_dict(layer.state_dict())
    compare(
        lambda x: (copy if x.device == CARD else layer)(x, x, x), torch.randn(5, 2, 16, requires_grad=True), **CLOSE
    )


def encoder(**options: object) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True, **options)


@pytest.mark.parametrize("options", [{}, {"norm_first": True}, {"activation": "gelu"}])
def test_encoder_layer_in_training(options: dict[str, object]) -> None:
    compare_module(encoder(**options), torch.randn(2, 5, 16), **CLOSE)


@pytest.mark.parametrize("options", [{}, {"norm_first": True}, {"activation": "gelu"}])
def test_encoder_layer_in_evaluation_takes_the_fast_path(options: dict[str, object]) -> None:
    layer, x = encoder(**options).eval(), torch.randn(2, 5, 16)
    with torch.no_grad():
        host = layer(x)
        slow = layer.train()(x)
        with Seen() as seen:
            card = layer.eval().to(CARD)(x.to(CARD))
    assert "aten::_transformer_encoder_layer_fwd" in seen.names
    assert_same(card, host, **CLOSE)
    torch.testing.assert_close(host, slow, **CLOSE)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")  # on the CPU
@pytest.mark.parametrize("nested", [False, True])
def test_encoder_with_padding(nested: bool) -> None:
    layers, x = nn.TransformerEncoder(encoder(), 2, enable_nested_tensor=nested).eval(), torch.randn(2, 5, 16)
    padding = torch.tensor([[False] * 5, [False, False, False, True, True]])
    with torch.no_grad():
        host = layers(x, src_key_padding_mask=padding)
        card = layers.to(CARD)(x.to(CARD), src_key_padding_mask=padding.to(CARD))
    assert_same(card[0], host[0], **CLOSE)
    assert_same(card[1, :3], host[1, :3], **CLOSE)


def test_decoder_layer() -> None:
    layer = nn.TransformerDecoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    compare_module(layer, torch.randn(2, 5, 16), torch.randn(2, 7, 16), **CLOSE)


def test_a_whole_transformer_under_a_causal_mask() -> None:
    model = nn.Transformer(16, 4, 1, 1, 32, dropout=0.0, batch_first=True)
    copy = nn.Transformer(16, 4, 1, 1, 32, dropout=0.0, batch_first=True).to(CARD)
    copy.load_state_dict(model.state_dict())

    def go(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(5, device=source.device)
        return (copy if source.device == CARD else model)(source, target, tgt_mask=mask, tgt_is_causal=True)

    compare(go, torch.randn(2, 7, 16, requires_grad=True), torch.randn(2, 5, 16, requires_grad=True), **CLOSE)


@pytest.mark.parametrize("masked", [False, True])
def test_shapes_that_a_trace_leaves_open(masked: bool) -> None:
    """A second length of sequences makes shapes dynamic: the choice of a kernel asked for the bytes of such a shape."""

    def attend(q: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)

    traced = torch.compile(attend, backend="aot_eager", dynamic=True)
    for length in (8, 11):
        host = torch.randn(2, 2, length, 4, requires_grad=True)
        card = host.detach().to(CARD).requires_grad_()
        mask = torch.ones(length, length, dtype=torch.bool).tril() if masked else None
        expected, found = attend(host, mask), traced(card, None if mask is None else mask.to(CARD))
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-5)
        expected.sum().backward()
        found.sum().backward()
        torch.testing.assert_close(card.grad.cpu(), host.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.filterwarnings("ignore:flex_attention called without:UserWarning")
@pytest.mark.parametrize("form", ["eager", "compiled"])
def test_flex_attention_was_refused_on_the_card(form: str) -> None:
    """torch lists its devices by name, autocast had none, and Inductor's template for the host has no gradients."""
    from torch.nn.attention import flex_attention

    def causal(_b: torch.Tensor, _h: torch.Tensor, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
        return row >= column

    def attend(tensors: list[torch.Tensor]) -> torch.Tensor:
        mask = flex_attention.create_block_mask(causal, None, None, 8, 8, device=tensors[0].device)
        return function(*tensors, block_mask=mask)

    host = inputs()
    card = [each.detach().to(CARD).requires_grad_() for each in host]
    expected = F.scaled_dot_product_attention(*host, is_causal=True)
    function = flex_attention.flex_attention if form == "eager" else torch.compile(flex_attention.flex_attention)
    found = attend(card)
    torch.testing.assert_close(found.cpu(), expected, **CLOSE)
    expected.sum().backward()
    found.sum().backward()
    for mine, theirs in zip(card, host, strict=True):
        torch.testing.assert_close(mine.grad.cpu(), theirs.grad, **CLOSE)
    with torch.autocast("npu", dtype=torch.bfloat16):
        assert attend([each.detach() for each in card]).dtype == torch.bfloat16


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.filterwarnings("ignore:flex_attention called without:UserWarning")
def test_functions_of_flex_attention_that_capture_tensors_were_an_internal_error_when_compiled() -> None:
    """A bias of positions that learns (T5's), and a mask of documents: both are tensors of the calling program."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def add(score: torch.Tensor, _b: torch.Tensor, head: torch.Tensor, row: torch.Tensor, column: torch.Tensor):  # type: ignore[no-untyped-def]
        return score + bias[head, row, column]

    def same(_b: torch.Tensor, _h: torch.Tensor, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
        return documents[row] == documents[column]

    host = [*inputs(), torch.randn(4, 8, 8, requires_grad=True)]
    card = [each.detach().to(CARD).requires_grad_() for each in host]
    bias, documents = card[3], torch.arange(8, device=CARD) // 3
    mask = create_block_mask(same, None, None, 8, 8, device=CARD)
    found = torch.compile(flex_attention)(*card[:3], score_mod=add, block_mask=mask)
    other = (documents[:, None] != documents).cpu()
    expected = F.scaled_dot_product_attention(*host[:3], attn_mask=host[3].masked_fill(other, -torch.inf))
    torch.testing.assert_close(found.cpu(), expected, **CLOSE)
    expected.square().sum().backward()
    found.square().sum().backward()
    for mine, theirs in zip(card, host, strict=True):
        torch.testing.assert_close(mine.grad.cpu(), theirs.grad, **CLOSE)

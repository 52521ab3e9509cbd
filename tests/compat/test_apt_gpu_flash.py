"""Facade apt_model.optimization.gpu_flash_optimization: FP4 whose rows can be odd, and attention that takes masks.

Held against toprope.tiers.pages and torch's attention.
"""

import resource

import pytest
import torch
from torch import nn
from torch.nn import functional

from toprope.compat.apt_model.optimization.gpu_flash_optimization import (
    FlashAttention,
    FP4Codec,
    FusedFP4Linear,
    OptimizedTransformerBlock,
)
from toprope.errors import PageError, UsageError

VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def relative(found, expected):
    return float(((found - expected).norm() / expected.norm()).detach())


@pytest.mark.parametrize("shape", [(1,), (7,), (5, 33), (3, 2, 64), (0, 8), (4, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_codes_are_two_a_byte_and_any_row_can_be_kept(shape, dtype):
    tensor = torch.randn(shape).to(dtype)
    packed, scale = FP4Codec.encode(tensor)
    assert (packed.dtype, tuple(packed.shape)) == (torch.int8, (*shape[:-1], -(-shape[-1] // 2)))
    assert tuple(scale.shape) == (*shape[:-1], -(-shape[-1] // 32))
    for size in (shape[-1], shape):
        values = FP4Codec.decode(packed, scale, size)
        assert (values.dtype, values.shape) == (torch.float32, tensor.shape)
    if tensor.numel() > 30:
        assert relative(values, tensor.float()) < 0.13
    assert FP4Codec.decode(packed, scale, shape[-1], torch.bfloat16).dtype == torch.bfloat16


def test_every_value_of_e2m1_comes_back():
    row = torch.tensor([*VALUES, *(-each for each in VALUES)])
    packed, scale = FP4Codec.encode(row)
    assert torch.equal(FP4Codec.decode(packed, scale, 16), row)
    assert packed[1] & 0xF == 2  # the first of two in the low half


def test_an_outlier_costs_only_its_own_block():
    row = torch.randn(1, 4096)
    row[0, 100] = 30 * row.std()
    values = FP4Codec.decode(*FP4Codec.encode(row), 4096)
    others = torch.ones(4096, dtype=torch.bool)
    others[96:128] = False
    assert relative(values[:, others], row[:, others]) < 0.115


def test_encoding_takes_less_memory_than_twice_the_tensor():
    tensor = torch.randn(4096, 2048)
    FP4Codec.encode(tensor[:8])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    FP4Codec.encode(tensor)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 2 * tensor.nbytes


def test_what_is_no_row_is_refused():
    packed, scale = FP4Codec.encode(torch.randn(3, 8))
    for given in ((packed, scale, 9), (packed, scale[:2], 8), (packed, scale, 6)):
        with pytest.raises(PageError, match="are no rows of"):
            FP4Codec.decode(*given)
    with pytest.raises(PageError, match="without dimensions"):
        FP4Codec.encode(torch.tensor(1.0))


@pytest.mark.parametrize(
    ("activation", "function"), [("gelu", functional.gelu), ("none", lambda x: x), (None, lambda x: x)]
)
def test_a_layer_is_quantised_when_it_is_asked_to(activation, function):
    layer, x = FusedFP4Linear(128, 96, activation=activation), torch.randn(5, 128)
    plain = layer(x)
    assert torch.equal(plain, function(functional.linear(x, layer.weight, layer.bias)))
    names = [name for name, _ in layer.named_parameters()]
    layer.quantize()
    layer.quantize()
    trained = [name for name, each in layer.named_parameters() if each.requires_grad]
    assert trained == [name for name in names if "weight" not in name]
    assert relative(layer(x), plain) < 0.2
    assert torch.allclose(layer(x), function(functional.linear(x, layer.weight, layer.bias)), atol=1e-4)
    layer(x.requires_grad_()).sum().backward()
    assert x.grad is not None
    assert layer.bias.grad is not None


def test_a_layers_state_comes_back_quantised_or_not():
    plain, quantised, x = FusedFP4Linear(64, 32), FusedFP4Linear(64, 32), torch.randn(2, 64)
    quantised.quantize()
    out = quantised(x)
    fresh = FusedFP4Linear(64, 32)
    fresh.load_state_dict(quantised.state_dict())
    assert torch.equal(fresh(x), out)
    state = plain.state_dict()
    quantised.load_state_dict(state)
    assert 0 < relative(quantised(x), plain(x)) < 0.2
    assert set(state) == {"linear.weight", "linear.bias"}
    with pytest.raises(UsageError, match="no activation 'swish'"):
        FusedFP4Linear(4, 4, activation="swish")


def reference(layer, x, allowed=None):
    query, key, value = (
        each.view(*x.shape[:2], layer.n_heads, -1).transpose(1, 2) for each in layer.qkv_proj(x).chunk(3, -1)
    )
    scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
    if allowed is not None:
        scores = scores.masked_fill(~allowed, float("-inf"))
    return layer.out_proj((scores.softmax(-1) @ value).transpose(1, 2).reshape(x.shape))


@pytest.mark.parametrize("head", [64, 80, 128])
def test_masks_count_forward_and_backward(head):
    """Causal and padding masks, in the shapes that programs give. (27)"""
    layer, length = FlashAttention(2 * head, 2, dropout=0.0), 33
    x = torch.randn(3, length, 2 * head, requires_grad=True)
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    padding = torch.ones(3, length, dtype=torch.bool)
    padding[1, 20:] = False
    both = causal & padding[:, None, None, :]
    cases = [
        ({}, None),
        ({"mask": causal}, causal),
        ({"mask": causal.int()}, causal),
        ({"is_causal": True}, causal),
        ({"mask": padding}, padding[:, None, None, :]),
        ({"mask": padding, "is_causal": True}, both),
        ({"mask": both[:, 0]}, both),
        ({"mask": both}, both),
        ({"mask": torch.zeros(length, length).masked_fill(~causal, float("-inf"))}, causal),
        ({"mask": torch.zeros(length, length), "is_causal": True}, causal),
    ]
    for given, allowed in cases:
        out, expected = layer(x, **given), reference(layer, x, allowed)
        assert torch.allclose(out, expected, atol=1e-5)
        gradients = [torch.autograd.grad(each.square().sum(), x)[0] for each in (out, expected)]
        assert torch.allclose(*gradients, atol=1e-4)
    for wrong in (torch.ones(4), torch.ones(5, 7), torch.ones(3, 4, length, length)):
        with pytest.raises(UsageError, match="fits no 3 sequences"):
            layer(x, wrong.bool())
    with pytest.raises(UsageError, match="do not share"):
        FlashAttention(10, 3)


def test_what_attention_saves_grows_with_the_length_and_not_its_square():
    layer = FlashAttention(64, 1)

    def saved(length):
        seen = {}

        def pack(tensor):
            seen[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            kept = layer(torch.randn(1, length, 64), is_causal=True)
        del kept
        return sum(seen.values())

    layer.eval()
    assert saved(4096) < 2.2 * saved(2048)
    x = torch.randn(1, 4096, 64, requires_grad=True)
    causal = torch.ones(4096, 4096, dtype=torch.bool).tril()
    out, expected = layer(x, is_causal=True), reference(layer, x, causal)
    assert torch.allclose(out, expected, atol=1e-5)
    gradients = [torch.autograd.grad(each.sum(), x)[0] for each in (out, expected)]
    assert torch.allclose(*gradients, atol=1e-4)


def test_a_block_learns_is_quantised_and_computed_again():
    block = OptimizedTransformerBlock(64, 4, 128, dropout=0.0, use_checkpoint=True)
    plain = OptimizedTransformerBlock(64, 4, 128, dropout=0.0)
    plain.load_state_dict(block.state_dict())
    x = torch.randn(2, 7, 64)
    assert torch.equal(block(x, is_causal=True), plain(x, is_causal=True))
    for each in (block, plain):
        each(x, is_causal=True).square().sum().backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(block.parameters(), plain.parameters(), strict=True))
    out = plain(x)
    later = plain(x, is_causal=True)
    assert torch.allclose(later[:, -1], out[:, -1], atol=1e-5)  # the last place sees all either way
    assert not torch.allclose(later[:, 0], out[:, 0], atol=1e-3)
    plain.quantize()
    assert not isinstance(plain.up.linear, nn.Linear)
    assert relative(plain(x), out) < 0.1
    dense = OptimizedTransformerBlock(64, 4, 128, use_fp4=False)
    dense.quantize()
    assert isinstance(dense.up.linear, nn.Linear)

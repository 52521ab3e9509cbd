"""torch_npu.contrib.module, and tensors that only a card has: programs on the simulated card.

Holds creation.py in src/toprope/compat/torch_npu/operators.

Layers whose operator the facade lacks are made all the same, and say so when they run.
"""

import pytest

from torch_npu_programs import outcomes

pytestmark = [pytest.mark.native, pytest.mark.process]

COMMON = """
import random
import warnings
import numpy as np
from torch import nn
from torch_npu.contrib import module as layers

warnings.simplefilter("ignore", FutureWarning)

def drawn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))

def there(name):
    return hasattr(torch_npu, name)
"""

CASES = {
    "names": """
import torch_npu.contrib
from torch_npu.contrib.module.multihead_attention import _MHAConfig, _NpuLinear, _quant_noise
from torch_npu.contrib.module._ensemble_dropout import NpuPreGenDropout
from torch_npu.contrib.module.ensemble_dropout import NpuCachedDropout

for name in layers.__all__:
    assert getattr(layers, name).__module__.startswith("torch_npu.contrib.module"), name
assert layers.Swish is layers.SiLU and layers.DCNv2 is layers.ModulatedDeformConv
assert layers.NpuFairseqDropout is NpuCachedDropout and torch_npu.contrib.BiLSTM is layers.BiLSTM
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    layers.Mish(), layers.SiLU(), layers.BiLSTM(2, 2), layers.FusedColorJitter(), layers.LinearA8W8Quant(2, 2)
assert [each.category for each in caught] == [FutureWarning] * 5
assert all(each.filename == "names" for each in caught), caught
""",
    "activations": """
x = drawn(3, 4)
assert torch.allclose(layers.SiLU()(x.npu()).cpu(), nn.functional.silu(x), atol=1e-6)
if there("npu_mish"):
    assert torch.allclose(layers.Mish()(x.npu()).cpu(), nn.functional.mish(x), atol=1e-6)
else:
    refused(AttributeError, "npu_mish", layers.Mish(), x.npu())
""",
    "BiLSTM": """
layer = layers.BiLSTM(4, 3)
whole = nn.LSTM(4, 3, bidirectional=True)
states = {**{f"{name}": value for name, value in layer.fw_rnn.state_dict().items()},
          **{f"{name}_reverse": value for name, value in layer.bw_rnn.state_dict().items()}}
whole.load_state_dict(states)
x = drawn(5, 2, 4)
assert torch.allclose(layer.npu()(x.npu()).cpu(), whole(x)[0], atol=1e-5)
""",
    "channel shuffle": """
x1, x2 = drawn(2, 3, 4, 4), drawn(2, 3, 5, 4)[:, :, :4]
both = torch.cat((x1, x2), 1)
shuffled = both.view(2, 2, 3, 4, 4).transpose(1, 2).reshape(2, 6, 4, 4)
for training in (True, False):
    whole = layers.ChannelShuffle(6, split_shuffle=False).npu().train(training)
    halves = layers.ChannelShuffle(6).npu().train(training)
    ours = [each.npu().requires_grad_() for each in (x1, x2)]
    assert torch.equal(whole(*ours).cpu(), shuffled)
    assert torch.equal(torch.cat(halves(*ours), 1).cpu(), shuffled)
    weight = drawn(2, 6, 4, 4)
    for output in (whole(*ours), torch.cat(halves(*ours), 1)):
        grads = torch.autograd.grad((output * weight.npu()).sum(), ours)
        assert torch.equal(torch.cat(grads, 1).cpu(), weight.view(2, 3, 2, 4, 4).transpose(1, 2).reshape(2, 6, 4, 4))
""",
    "Focus": """
x = drawn(2, 3, 6, 8)
layer = layers.Focus(3, 5).eval()
parts = torch.cat([x[..., ::2, ::2], x[..., 1::2, ::2], x[..., ::2, 1::2], x[..., 1::2, 1::2]], 1)
expected = layer.conv(parts)
assert torch.allclose(layer.npu()(x.npu()).cpu(), expected, atol=1e-4)
assert layers.focus.autopad(3) == 1 and layers.focus.autopad((3, 5)) == [1, 2] and layers.focus.autopad(3, 0) == 0
""",
    "batch normalisation with an int32 counter": """
for kind, plain, shape in ((layers.FastBatchNorm1d, nn.BatchNorm1d, (4, 3)), (layers.FastBatchNorm2d, nn.BatchNorm2d,
                           (4, 3, 2, 2)), (layers.FastBatchNorm3d, nn.BatchNorm3d, (4, 3, 2, 2, 2))):
    for momentum in (0.3, None):
        mine, torchs = kind(3, momentum=momentum).npu(), plain(3, momentum=momentum)
        for _ in range(2):
            assert torch.allclose(mine(drawn(*shape).npu()).cpu(), torchs(drawn(*shape)), atol=1e-5)
        assert mine.num_batches_tracked.dtype is torch.int32 and mine.num_batches_tracked.item() == 2
        assert torch.allclose(mine.running_var.cpu(), torchs.running_var, atol=1e-5)
        assert torch.allclose(mine.eval()(drawn(*shape).npu()).cpu(), torchs.eval()(drawn(*shape)), atol=1e-4)
    refused(ValueError, "1D input1", mine, drawn(4).npu())
refused(TypeError, "device", layers.FastSyncBatchNorm, 3)
converted = layers.FastSyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.BatchNorm1d(3)))
assert isinstance(converted[0], nn.SyncBatchNorm)
""",
    "drop path": """
kind = layers.NpuDropPath
x = torch.ones(64, 3, device="npu")
assert kind(0.0)(x) is x and kind(0.5).eval()(x) is x
refused(RuntimeError, "input type error", kind(0.5), [1])
model = nn.Sequential(kind(0.25))
kind.enable_droppath_ensemble(model)
assert model(x) is x  # which only counts
dropped = model(x)
assert {round(value, 4) for value in dropped.unique().tolist()} == {0.0, round(1 / 0.75, 4)}
assert torch.equal(dropped[:, 0], dropped[:, 1])
""",
    "dropouts": """
kind, large = layers.NpuCachedDropout, layers.NpuPreGenDropout
x = torch.ones(16, 16, device="npu")
refused(RuntimeError, "input type error", kind(0.5), "x")
assert kind(0.0)(x) is x and large(0.0)(x) is x and kind(0.5)([(2, 2), torch.float32, x.device]) is None
refused(RuntimeError, "NpuPreGenDropout input prob error", large(0.3), x)
model = nn.Sequential(kind(0.5))
assert kind(0.5)(x) is x
refused(ValueError, "between 0 and 1", layers.DropoutWithByteMask, 1.5)
if there("npu_dropout_gen_mask") and there("npu_dropout_do_mask"):
    kind.enable_dropout_ensemble(model)
    assert model(x) is x
    assert {*model(x).unique().tolist()} == {0.0, 2.0}
    large.prob.clear()
    model = nn.Sequential(large(0.5))
    large.enable_dropout_ensemble(model)
    assert {*model(x).unique().tolist()} == {0.0, 2.0}
""",
    "linear layers with quantised weights": """
layer = layers.LinearQuant(5, 3, bias=False)
assert {*layer.state_dict()} == {"weight", "scale"} and layer.bias is None
refused(ValueError, "now input is torch.float32, weight is torch.float32", layer, drawn(2, 5))
assert {*layers.LinearQuant(5, 3, offset=True, pertoken_scale=True).state_dict()} == {
    "weight", "scale", "offset", "pertoken_scale", "bias"}
old = layers.LinearA8W8Quant(5, 3, bias=False, output_dtype=torch.float32)
old.weight.data = torch.ones(3, 5, dtype=torch.int8)
refused(ValueError, "output_dtype should be torch.int8, torch.float16 or torch.bfloat16, but", old, old.weight)
old.output_dtype = torch.bfloat16
refused(UnboundLocalError, "scale_quant", old, old.weight)
old.scale.data = old.scale.data.half()
refused(ValueError, "scale should be torch.int64, torch.float32 or torch.bfloat16 datatype, but", old, old.weight)
assert {*layers.LinearWeightQuant(5, 3, quant_scale=True).state_dict()} == {
    "weight", "antiquant_scale", "quant_scale", "bias"}
refused(ValueError, "offset must be False", layers.QuantConv2d, 1, 1, 3, 1, offset=True)
if there("npu_quant_matmul") and there("npu_trans_quant_param"):
    layer = layer.npu()
    layer.weight.data = torch.randint(-5, 5, (3, 5), dtype=torch.int8).npu()
    layer.scale.data = torch.tensor([0.5, 0.25, 2.0]).npu()
    x = torch.randint(-5, 5, (2, 5), dtype=torch.int8)
    expected = (x.float() @ layer.weight.cpu().float().t()) * layer.scale.cpu()
    layer.output_dtype = torch.float16
    assert torch.allclose(layer(x.npu()).cpu().float(), expected, atol=1e-2)
""",
    "attention": """
from torch_npu.contrib.module.multihead_attention import _NpuLinear, _quant_noise

kind = layers.MultiheadAttention
refused(ValueError, "divisible by num_heads", kind, 10, 3)
refused(ValueError, "of the same size", kind, 8, 2, kdim=4, self_attention=True)
model = kind(8, 2, add_bias_kv=True)
assert model.bias_k.shape == model.bias_v.shape == (1, 1, 8) and not model.out_proj.bias.any()
assert model(None, None, None, 1, 1, 1) == (None, None)
states = {"a.in_proj_weight": torch.arange(6.0).view(6, 1), "a.in_proj_bias": torch.arange(6.0)}
model.upgrade_state_dict_named(states, "a")
assert sorted(states) == [f"a.{letter}_proj.{kind}" for letter in "kqv" for kind in ("bias", "weight")]
assert states["a.k_proj.bias"].tolist() == [2.0, 3.0]
refused(RuntimeError, "not support this dim", _NpuLinear(2, 2), torch.ones(2, 2, 2, 2))
refused(TypeError, "nn.Linear", _quant_noise, nn.Conv1d(2, 2, 1), 0.1, 2)
for layer, size, text in ((nn.Linear(10, 4), 3, "Input features"), (nn.Conv2d(10, 4, 1), 3, "Input channels"),
                          (nn.Conv2d(10, 4, 3), 5, "Kernel size")):
    refused(ValueError, text, _quant_noise, layer, 0.1, size)
torch.manual_seed(1)
for layer, size, x in ((nn.Linear(8, 64), 4, drawn(1, 8)), (nn.Conv2d(4, 64, 1), 2, drawn(1, 4, 2, 2)),
                       (nn.Conv2d(8, 64, 2), 4, drawn(1, 8, 2, 2))):
    weight = layer.weight.detach().clone()
    _quant_noise(layer, 0.5, size)(x)
    blocks = layer.weight.detach().reshape(-1, size) / weight.reshape(-1, size)
    assert {*blocks.round(decimals=4).unique().tolist()} == {0.0, 2.0} and (blocks == blocks[:, :1]).all()
assert _quant_noise(layer, 0, 7) is layer
""",
    "vision layers": """
refused(ValueError, "pooled_height == pooled_width == group_size", layers.PSROIPool, 7, 7, 1.0, 6)
refused(ValueError, "rois.size(1) == 5", layers.ROIAlign((2, 2), 1.0, 2), drawn(1, 2, 4, 4), drawn(3, 4))
text = "ROIAlign(output_size=(2, 2), spatial_scale=0.5, sampling_ratio=2, aligned=True)"
assert repr(layers.ROIAlign((2, 2), 0.5, 2)) == text
layer = layers.ModulatedDeformConv(3, 4, 3, padding=1)
assert layer.conv_offset.out_channels == 27 and not layer.conv_offset.weight.any() and not layer.bias.any()
assert layer.sort_index_for_npu_fp.tolist() == [*range(1, 18, 2), *range(0, 18, 2)]
order = layer.sort_index_for_npu_fp.long()
assert order[layer.sort_index_for_npu_bp.long()].tolist() == list(range(18))
if there("npu_deformable_conv2d"):
    x = drawn(2, 3, 5, 5)
    expected = nn.functional.conv2d(x, layer.weight, padding=1) * 0.5
    assert torch.allclose(layer.npu()(x.npu()).cpu(), expected, atol=1e-4)
if there("npu_roi_align"):
    boxes = torch.tensor([[0.0, 0, 0, 3, 3]]).npu()
    assert layers.ROIAlign((2, 2), 1.0, 2)(drawn(1, 2, 4, 4).npu(), boxes).shape == (1, 2, 2, 2)
""",
    "losses": """
layer = layers.LabelSmoothingCrossEntropy(4, 0.1)
assert abs(layer.off_value - 0.1 / 3) < 1e-9
if there("npu_one_hot") and there("npu_softmax_cross_entropy_with_logits"):
    x, labels = drawn(5, 4), torch.tensor([0, 1, 2, 3, 1])
    targets = torch.full((5, 4), 0.1 / 3).scatter(1, labels[:, None], 0.9)
    expected = -(targets * x.log_softmax(1)).sum(1).mean()
    assert torch.allclose(layer(x.npu(), labels.npu()).cpu(), expected, atol=1e-5)
else:
    refused(AttributeError, "npu_one_hot", layer, drawn(2, 4).npu(), torch.tensor([0, 1]).npu())
""",
    "prefetcher": """
batches = [(torch.full((2,), float(index)), torch.tensor([index])) for index in range(3)]
prefetcher, found = layers.Prefetcher(batches), []
while (batch := prefetcher.next())[0] is not None:
    assert batch[0].device.type == batch[1].device.type == "npu"
    found.append((batch[0].tolist(), batch[1].tolist()))
assert found == [([float(index)] * 2, [index]) for index in range(3)]
assert layers.Prefetcher([]).next() == (None, None)
""",
    "colours": """
apply = layers.fusedcolorjitter._FusedColorJitterApply
image = np.random.default_rng(1).integers(0, 256, (4, 5, 3)).astype(np.uint8)
assert np.abs(apply(0, 0, 0, 0)(image).astype(int) - image).max() <= 1  # no change but rounding down
assert apply(0.1, 0.1, 0.1, 0.1)(image[:, :, :1]).shape == (4, 5, 3)
assert apply(0.1)(np.dstack((image, image[:, :, :1]))).shape == (4, 5, 3)
refused(ValueError, "(4, 5, 2)", apply(), image[:, :, :2])
bright = apply()
bright.get_random_transform_matrix = lambda *amounts: (np.eye(3) * 2, 3.0)
assert (bright(image) == np.clip(image * 2.0 + 3, 0, 255).astype(np.uint8)).all()
layer = layers.FusedColorJitter(0.1, (0.5, 2), 0, 0)
assert repr(layer) == "FusedColorJitter(brightness=[0.9, 1.1], contrast=(0.5, 2), saturation=None, hue=None)"
refused(ValueError, "must be non negative", layers.FusedColorJitter, -1)
refused(ValueError, "hue values should be between (-0.5, 0.5)", layers.FusedColorJitter, hue=(-1, 1))
refused(TypeError, "list/tuple with length 2", layers.FusedColorJitter, "a")
""",
    "memory of the host": """
before = torch.npu.memory_allocated()
made = torch_npu.empty_with_swapped_memory([256, 256], dtype=torch.float16, device=torch.device("npu:0"))
assert torch.npu.memory_allocated() == before, torch.npu.memory_allocated() - before
assert (made.device, made.shape, made.dtype) == (torch.device("npu", 0), (256, 256), torch.float16)
made.fill_(3).mul_(2)
assert torch.equal(made.cpu(), torch.full((256, 256), 6.0).half()) and made.is_contiguous()
view = made[1:3]
del made
assert view.sum().item() == 6 * 512
assert torch_npu.empty_with_swapped_memory([2]).dtype is torch.float32
assert torch_npu.empty_with_swapped_memory([0, 3]).shape == (0, 3)
assert torch_npu.empty_with_swapped_memory([]).dim() == 0
refused(RuntimeError, "npu, but got cpu", torch_npu.empty_with_swapped_memory, [2], device="cpu")
refused(RuntimeError, "negative dimension", torch_npu.empty_with_swapped_memory, [-2])
moments = [torch_npu.empty_with_swapped_memory([4]).zero_() for _ in range(2)]
parameter, grad = torch.ones(4, device="npu"), torch.ones(4, device="npu")
torch_npu.npu_apply_adam_w(1, 1, 0.1, 0, 0.9, 0.99, 1e-8, grad, None, False, False, out=(parameter, *moments))
assert torch.allclose(parameter.cpu(), torch.full((4,), 0.9))
torch.use_deterministic_algorithms(True)
assert torch_npu.empty_with_swapped_memory([3]).isnan().all()
assert (torch_npu.empty_with_swapped_memory([3], dtype=torch.int8) == 127).all()
assert torch_npu.empty_with_swapped_memory([3], dtype=torch.bool).all()
torch.use_deterministic_algorithms(False)
""",
    "empty with a format": """
from torch_npu import Format, get_npu_format

make = torch_npu.unsafe_empty_with_format
torch.npu.config.allow_internal_format = False
assert get_npu_format(make([32, 32], device="npu", acl_format=29)) is Format.ND
assert get_npu_format(make([32, 32], device="npu", acl_format=29, keep_format=True)) is Format.FRACTAL_NZ
assert get_npu_format(make([1, 2, 3, 4], dtype=torch.float16, device="npu", acl_format=3)) is Format.NCHW
torch.npu.config.allow_internal_format = True
assert get_npu_format(make([32, 32], device="npu", acl_format=29)) is Format.FRACTAL_NZ
refused(RuntimeError, "on the NPU", make, [2])
refused(RuntimeError, "format 5", make, [2], device="npu", acl_format=5)
""",
}


@pytest.fixture(scope="module")
def found():
    return outcomes({name: COMMON + code for name, code in CASES.items()})


@pytest.mark.parametrize("name", CASES)
def test_on_the_card(found, name):
    assert not found[name], found[name]

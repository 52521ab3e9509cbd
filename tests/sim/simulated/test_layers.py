"""Layers of torch.nn and losses: results, buffers and gradients are the CPU's.

Holds csrc/torch against the CPU's results, buffers and gradients. tests/sim/test_simulated.py runs this module in a
process with simulated cards.
"""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from against_cpu import CARD, assert_same, compare, compare_module

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "Linear": (lambda: nn.Linear(8, 16), (4, 8)),
    "Linear on three dimensions": (lambda: nn.Linear(8, 5, bias=False), (2, 3, 8)),
    "PReLU": (lambda: nn.Sequential(nn.Linear(8, 8), nn.PReLU(), nn.Linear(8, 2)), (4, 8)),
    "Conv1d": (lambda: nn.Conv1d(3, 8, 3), (2, 3, 8)),
    "Conv2d": (lambda: nn.Conv2d(3, 8, 3, padding=1), (2, 3, 8, 8)),
    "Conv2d with strides and dilation": (lambda: nn.Conv2d(4, 6, 3, stride=2, dilation=2, bias=False), (2, 4, 9, 9)),
    "Conv2d in groups": (lambda: nn.Conv2d(4, 8, 3, groups=4, padding="same"), (2, 4, 6, 6)),
    "Conv2d of one picture": (lambda: nn.Conv2d(3, 4, 1), (3, 5, 5)),
    "Conv2d with reflected edges": (lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), (2, 3, 6, 6)),
    "Conv3d": (lambda: nn.Conv3d(3, 4, 3), (2, 3, 8, 8, 8)),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(3, 4, 3, stride=2), (2, 3, 6)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(3, 8, 3, stride=2, output_padding=1), (2, 3, 8, 8)),
    "ConvTranspose3d": (lambda: nn.ConvTranspose3d(2, 4, 2, groups=2), (1, 2, 3, 3, 3)),
    "LayerNorm": (lambda: nn.LayerNorm(8), (4, 8)),
    "LayerNorm without weights": (lambda: nn.LayerNorm((3, 8), elementwise_affine=False), (4, 3, 8)),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(6), (5, 6)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(3), (4, 3, 5, 5)),
    "BatchNorm3d": (lambda: nn.BatchNorm3d(2), (2, 2, 3, 3, 3)),
    "BatchNorm2d in evaluation": (lambda: nn.BatchNorm2d(3).eval(), (4, 3, 5, 5)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), (4, 4, 5)),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(3, affine=True, track_running_stats=True), (2, 3, 4, 4)),
    "RMSNorm": (lambda: nn.RMSNorm(8), (4, 8)),
    "LocalResponseNorm": (lambda: nn.LocalResponseNorm(2), (2, 4, 5, 5)),
    "MaxPool1d": (lambda: nn.MaxPool1d(2), (2, 3, 8)),
    "MaxPool2d with places": (lambda: nn.MaxPool2d(2, return_indices=True), (2, 3, 6, 6)),
    "MaxPool3d": (lambda: nn.MaxPool3d(2), (1, 2, 4, 4, 4)),
    "AvgPool2d": (lambda: nn.AvgPool2d(3, 2, padding=1, count_include_pad=False), (2, 3, 8, 8)),
    "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d((3, 1)), (2, 3, 7, 5)),
    "AdaptiveMaxPool1d": (lambda: nn.AdaptiveMaxPool1d(3), (2, 3, 8)),
    "LPPool2d": (lambda: nn.LPPool2d(2, 2), (2, 3, 4, 4)),
    "PixelShuffle": (lambda: nn.PixelShuffle(2), (1, 8, 3, 3)),
    "Unfold and Fold": (lambda: nn.Sequential(nn.Unfold(2), nn.Fold((4, 4), 2)), (2, 3, 4, 4)),
    "Upsample": (lambda: nn.Upsample(scale_factor=2, mode="nearest"), (2, 3, 4, 4)),
    "Softmax": (lambda: nn.Sequential(nn.Softmax(-1), nn.LogSoftmax(0)), (3, 4)),
    "GLU": (lambda: nn.GLU(), (3, 8)),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), (2, 4)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layer(name: str) -> None:
    make, shape = LAYERS[name]
    compare_module(make(), torch.randn(shape))


def test_layers_in_channels_last() -> None:
    layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
    compare_module(
        layers.to(memory_format=torch.channels_last),
        torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last),
    )


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
def test_images_that_are_permuted_and_so_are_their_gradients_were_refused(mode: str) -> None:
    """Results had the memory format of the operand: diffusers' UNet did not train."""

    def go(x: torch.Tensor) -> torch.Tensor:
        result = F.interpolate(x.permute(0, 3, 1, 2), scale_factor=2, mode=mode)
        return result.permute(0, 2, 3, 1).contiguous().square()

    compare(go, torch.randn(2, 4, 4, 3, requires_grad=True), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"padding_idx": 2}, {"max_norm": 1.0}, {"scale_grad_by_freq": True}])
def test_embedding(options: dict[str, object]) -> None:
    compare_module(nn.Embedding(10, 8, **options), torch.randint(0, 10, (4, 5)))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bag(mode: str) -> None:
    compare_module(nn.EmbeddingBag(10, 8, mode=mode), torch.randint(0, 10, (4, 5)))


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic", "area", "nearest-exact"])
def test_interpolate(mode: str) -> None:
    corners = False if mode.startswith("bi") else None
    compare(
        lambda t: F.interpolate(t, scale_factor=1.5, mode=mode, align_corners=corners),
        torch.randn(2, 3, 6, 6, requires_grad=True),
    )


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
def test_pad(mode: str) -> None:
    compare(lambda t: F.pad(t, (1, 2, 2, 1), mode=mode), torch.randn(2, 3, 5, 6, requires_grad=True))


def test_grid_sample() -> None:
    grid = torch.rand(2, 3, 3, 2, requires_grad=True)
    compare(lambda t, g: F.grid_sample(t, g, align_corners=True), torch.randn(2, 3, 5, 5, requires_grad=True), grid)


LOSSES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "smooth l1": F.smooth_l1_loss,
    "huber": F.huber_loss,
    "bce": lambda x, t: F.binary_cross_entropy(x.sigmoid(), t.sigmoid()),
    "bce with logits": lambda x, t: F.binary_cross_entropy_with_logits(x, t.sigmoid(), pos_weight=t[0].exp()),
    "kl": lambda x, t: F.kl_div(x.log_softmax(1), t.softmax(1), reduction="batchmean"),
    "soft cross entropy": lambda x, t: F.cross_entropy(x, t.softmax(1), label_smoothing=0.1),
    "cosine": lambda x, t: F.cosine_embedding_loss(x, t, t[:, 0].sign()),
    "hinge": lambda x, t: F.hinge_embedding_loss(x, t.sign()),
    "poisson": lambda x, t: F.poisson_nll_loss(x, t.exp()),
    "gaussian": lambda x, t: F.gaussian_nll_loss(x, t, t.exp()),
    "triplet": lambda x, t: F.triplet_margin_loss(x, t, t.flip(0)),
    "not reduced": lambda x, t: F.mse_loss(x, t, reduction="none"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_loss(name: str) -> None:
    compare(LOSSES[name], torch.randn(4, 5, requires_grad=True), torch.randn(4, 5))


@pytest.mark.parametrize("shape", [(6, 5), (2, 5, 3), (2, 5, 3, 3)])
@pytest.mark.parametrize("options", [{}, {"ignore_index": 1}, {"label_smoothing": 0.1, "reduction": "sum"}])
def test_cross_entropy(shape: tuple[int, ...], options: dict[str, object]) -> None:
    targets = torch.randint(0, 5, (shape[0], *shape[2:]))
    compare(
        lambda x, t, w: F.cross_entropy(x, t, w, **options),
        torch.randn(shape, requires_grad=True),
        targets,
        torch.rand(5),
    )


def test_multi_margin_losses() -> None:
    x, t = torch.randn(4, 5, requires_grad=True), torch.randint(0, 5, (4,))
    compare(lambda x, t: (F.multi_margin_loss(x, t), F.nll_loss(x.log_softmax(1), t, reduction="sum")), x, t)


@pytest.mark.parametrize("lengths", [((6, 6), (3, 3)), ((6, 4), (2, 3))])
def test_ctc_loss(lengths: tuple[tuple[int, int], tuple[int, int]]) -> None:
    scores, targets = torch.randn(6, 2, 5, requires_grad=True), torch.randint(1, 5, (2, 3))
    compare(lambda s, t: F.ctc_loss(s.log_softmax(2), t, *lengths), scores, targets)
    compare(
        lambda s, t, i, o: F.ctc_loss(s.log_softmax(2), t, i, o, zero_infinity=True),
        scores, targets, *(torch.tensor(length) for length in lengths),
    )  # fmt: skip


def test_hooks_see_the_card() -> None:
    layer, seen = nn.Linear(3, 2).to(CARD), []
    layer.register_forward_hook(lambda module, given, result: seen.append(result.device))
    layer.register_full_backward_hook(lambda module, into, out_of: seen.append(out_of[0].device))
    layer.weight.register_hook(lambda gradient: gradient * 2)
    layer(torch.ones(1, 3, device=CARD, requires_grad=True)).sum().backward()
    assert seen == [CARD, CARD]
    assert_same(layer.weight.grad, torch.full((2, 3), 2.0))


def test_a_module_moves_with_all_it_has() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    assert module.npu() is module
    assert {t.device for t in (*module.parameters(), *module.buffers())} == {CARD}
    module.npu(1).half()
    assert {t.device for t in (*module.parameters(), *module.buffers())} == {torch.device("npu:1")}
    module.cpu()
    assert {t.device.type for t in (*module.parameters(), *module.buffers())} == {"cpu"}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("weighted", [None, "half", "single"])
def test_mean_and_deviation_of_a_layer_norm_were_in_half_precision(dtype: torch.dtype, weighted: str | None) -> None:
    x, grad = torch.randn(4, 6, 16, dtype=dtype), torch.randn(4, 6, 16, dtype=dtype)
    of_weight = dtype if weighted == "half" else torch.float32
    parts = [torch.randn(16, dtype=of_weight) if weighted else None for _ in range(2)]
    wide = [None if part is None else part.float() for part in parts]
    wanted = torch.native_layer_norm(x.float(), [16], *wide, 1e-5)
    on_card = [None if part is None else part.to(CARD) for part in parts]
    found = torch.native_layer_norm(x.to(CARD), [16], *on_card, 1e-5)
    assert [each.dtype for each in found] == [dtype, torch.float32, torch.float32]
    for each, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(each.cpu(), other.to(each.dtype))
    backward = torch.ops.aten.native_layer_norm_backward
    mask = [True, weighted is not None, weighted is not None]
    gradients = backward(grad.to(CARD), x.to(CARD), [16], *found[1:], *on_card, mask)
    others = backward(grad.float(), x.float(), [16], *wanted[1:], *wide, mask)
    for each, other, like in zip(gradients, others, (x, *parts), strict=True):
        assert (each is None) == (like is None)
        if each is not None:
            assert each.dtype == like.dtype
            assert each.device.type == "npu"
            torch.testing.assert_close(each.cpu(), other.to(each.dtype))


@pytest.mark.parametrize("shape", [(5, 3), (2, 3, 4, 4)])
def test_classes_of_a_loss_in_int32_were_refused(shape: tuple[int, ...]) -> None:
    scores, classes = torch.randn(shape), torch.randint(0, 3, (shape[0], *shape[2:]))
    classes.flatten()[0] = -100
    wanted, on_card = scores.clone().requires_grad_(), scores.to(CARD).requires_grad_()
    F.cross_entropy(wanted, classes).backward()
    loss = F.cross_entropy(on_card, classes.to(CARD).int())
    loss.backward()
    torch.testing.assert_close(loss.cpu(), F.cross_entropy(scores, classes))
    torch.testing.assert_close(on_card.grad.cpu(), wanted.grad)

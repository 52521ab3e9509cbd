"""Operators that move elements or work on values for vision models, and torch_npu.contrib.function, against numpy.

Holds tensor_layout.py and tensor_values.py in src/toprope/compat/torch_npu/operators.
"""

import itertools
import math
import warnings

import numpy as np
import pytest
import torch

OPS = torch.ops.npu


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def refused(text, function, *args, error=RuntimeError, **kwargs):
    with pytest.raises(error, match=f"(?s){text}"):
        function(*args, **kwargs)


def same(actual, expected):
    assert torch.equal(actual, torch.as_tensor(np.ascontiguousarray(expected)))
    assert actual.is_contiguous()


# --- layouts


def test_slice(facade):
    x = normal(4, 5, 6).transpose(0, 2)
    same(OPS.npu_slice(x, [1, 0, 2], [3, 5, 0]), x[1:4, 0:5, 2:2])
    found = OPS.npu_slice(x, [0, 0, 0], list(x.shape))
    same(found, x)
    assert found.data_ptr() != x.data_ptr()
    out = torch.empty(2, 2, 2)
    assert OPS.npu_slice.out(x, [1, 1, 1], [2, 2, 2], out=out) is out
    same(out, x[1:3, 1:3, 1:3])
    refused("are not in dimension 1 of 5", OPS.npu_slice, x, [0, 3, 0], [1, 3, 1])
    refused("one of each for every dimension", OPS.npu_slice, x, [0, 3], [1, 3])
    refused("out has shape", OPS.npu_slice.out, x, [1, 1, 1], [2, 2, 2], out=torch.empty(8))


INDEXING = [
    ((), ([], [], []), {}),
    (np.s_[0:2, 1:3], ([0, 1], [2, 3], [1, 1]), {}),
    (np.s_[-2:9, ::-1, 3:0:-2], ([-2, 0, 3], [9, 0, 0], [1, -1, -2]), {"begin_mask": 2, "end_mask": 2}),
    (np.s_[1, ..., 2], ([1, 0, 2], [0, 0, 0], [1, 1, 1]), {"shrink_axis_mask": 0b101, "ellipsis_mask": 0b010}),
    (
        np.s_[..., None, 1:, -1],
        ([0, 0, 1, -1], [0, 0, 9, 0], [1, 1, 1, 1]),
        {"ellipsis_mask": 1, "new_axis_mask": 2, "shrink_axis_mask": 8},
    ),
    (np.s_[None, 0, None, 1:2], ([0, 0, 0, 1], [0, 0, 0, 2], [1] * 4), {"new_axis_mask": 5, "shrink_axis_mask": 2}),
    (np.s_[:, 2:1, :, ::3], ([0, 2, 0, 0], [0, 1, 0, 0], [1, 1, 1, 3]), {"begin_mask": 13, "end_mask": 13}),
]  # fmt: skip


@pytest.mark.parametrize(("index", "lists", "masks"), INDEXING)
def test_indexing_is_that_of_numpy(facade, index, lists, masks):
    x = normal(2, 3, 4, 5)
    expected = x.numpy()[index]
    same(OPS.npu_indexing(x, *lists, **masks), expected)
    out = torch.empty(expected.shape)
    same(OPS.npu_indexing.out(x, *lists, **masks, out=out), expected)


def test_indexing_refuses(facade):
    x = normal(2, 3)
    refused("stride should not be 0.*ERR01003", OPS.npu_indexing, x, [0, 0], [1, 1], [1, 0])
    refused("equal size tensors", OPS.npu_indexing, x, [0], [1, 1], [1, 1], error=ValueError)
    refused("Multiple ellipses", OPS.npu_indexing, x, [0, 0], [1, 1], [1, 1], ellipsis_mask=3, error=ValueError)
    refused("only stride 1", OPS.npu_indexing, x, [0, 0], [1, 1], [-1, 1], shrink_axis_mask=1, error=ValueError)
    refused(
        "slice index 3 of dimension 1",
        OPS.npu_indexing,
        x,
        [0, 3],
        [1, 1],
        [1, 1],
        shrink_axis_mask=2,
        error=IndexError,
    )
    refused("has only 2 dims", OPS.npu_indexing, x, [0] * 3, [1] * 3, [1] * 3, error=IndexError)
    refused("larger than 8", OPS.npu_indexing, x, [0] * 9, [1] * 9, [1] * 9, new_axis_mask=0b1111111, error=ValueError)


@pytest.mark.parametrize("paddings", [[1, 2, 3, 4], [1, 2, 3], [0, 1], [], [1, 0, 0, 0, 9, 9]])
def test_pad(facade, paddings):
    x = normal(2, 3).t()
    both = [*paddings, 0, 0, 0, 0][:4]
    same(OPS.npu_pad(x, paddings), np.pad(x.numpy(), [both[:2], both[2:]]))
    refused("must not be negative", OPS.npu_pad, x, [-1, 0])


def test_transpose_broadcast_and_reshape(facade):
    x = normal(2, 3, 4)
    same(OPS.npu_transpose(x, [2, 0, 1]), x.numpy().transpose(2, 0, 1))
    same(OPS.npu_transpose(x, [0, 1, 2], False), x)
    assert OPS.npu_transpose(x, [0, 1, 2]).data_ptr() != x.data_ptr()
    out = torch.empty(4, 2, 3)
    assert OPS.npu_transpose.out(x, [2, 0, 1], out=out) is out
    same(out, x.numpy().transpose(2, 0, 1))
    for each in (x[:, :1], x[:, :1] > 0):
        same(OPS.npu_broadcast(each, [5, 2, 3, 4]), np.broadcast_to(each.numpy(), (5, 2, 3, 4)))
    same(OPS.npu_broadcast.out(x[:1], [2, 3, 4], out=torch.empty(2, 3, 4)), np.broadcast_to(x[:1].numpy(), (2, 3, 4)))
    for refresh in (False, True):
        same(OPS.npu_reshape(x.transpose(0, 2), [6, 4], refresh), x.numpy().transpose(2, 1, 0).reshape(6, 4))
    same(OPS.npu_reshape.out(x, [24], out=torch.empty(24)), x.numpy().reshape(24))
    refused("do not fit the shape", OPS.npu_reshape, x, [-1, 4])
    refused("out has shape", OPS.npu_broadcast.out, x, [2, 3, 4], out=torch.empty(3))


@pytest.mark.parametrize("first", [True, False])
def test_confusion_transpose(facade, first):
    x = normal(2, 3, 4, 6).requires_grad_()
    perm, shape = ([0, 2, 1, 3], [2, 4, 18]) if first else ([0, 2, 1], [2, 12, 6])
    plain = x.detach().numpy()
    expected = plain.transpose(perm).reshape(shape) if first else plain.reshape(shape).transpose(perm)
    found = OPS.npu_confusion_transpose(x, perm, shape, first)
    same(found.detach(), expected)
    grad = normal(*found.shape, seed=1)
    found.backward(grad)
    if first:  # the backward operator counts perm by the input's dimensions
        same(OPS.npu_confusion_transpose_backward(grad, perm, [2, 3, 4, 6], not first), x.grad)
    else:
        same(OPS.npu_confusion_transpose_backward(grad, perm, [2, 3, 4, 6], not first), x.grad)
    refused("shape has size 2 but perm.i. is, 2.*ERR01001", OPS.npu_confusion_transpose, x, [0, 2, 1], [2, 72], False)
    refused("length of perm", OPS.npu_confusion_transpose_backward, grad, [0, 1], [2, 3, 4, 6], False)
    refused("Repeated dim", OPS.npu_confusion_transpose_backward, grad, [0, 1, 1, 2], [2, 3, 4, 6], False)


def test_strides(facade):
    x = normal(4, 6)
    expected = np.lib.stride_tricks.as_strided(x.numpy().ravel()[3:], (2, 3), (4 * 7, 4 * 2))
    same(OPS.npu_stride_copy(x, [2, 3], [7, 2], 3), expected)
    same(OPS.npu_stride_copy.out(x, [2, 3], [7, 2], 3, out=torch.empty(2, 3)), expected)
    a, b = normal(2, 40, 3), normal(2, 20, 3, seed=1)
    wide = [np.pad(each.numpy(), ((0, 0), (0, 32), (0, 0))) for each in (a, b)]
    same(OPS.npu_stride_add(a, b, 1, 0, 2), wide[0][:, 16:48] + wide[1][:, :32])
    refused("no negative number", OPS.npu_stride_add, a, b, -1, 0, 1)


# --- values


@pytest.mark.parametrize("kind", ["max", "min"])
@pytest.mark.parametrize("keepdim", [True, False])
def test_extremes(facade, kind, keepdim):
    x = normal(3, 4, 5).requires_grad_()
    values, indices = getattr(OPS, f"npu_{kind}")(x, 1, keepdim)
    plain = x.detach().numpy()
    assert indices.dtype is torch.int32
    same(values.detach(), getattr(plain, kind)(axis=1, keepdims=keepdim))
    same(indices, getattr(plain, f"arg{kind}")(axis=1, keepdims=keepdim).astype(np.int32))
    grad = normal(*values.shape, seed=1)
    values.backward(grad)
    same(getattr(OPS, f"npu_{kind}_backward")(grad, 1, indices, [3, 4, 5], keepdim), x.grad)


def test_scatter_and_sort(facade):
    x, indices, updates = normal(3, 4, 5), torch.randint(0, 4, (3, 5), dtype=torch.int32), normal(3, 5, seed=1)
    expected = x.numpy().copy()
    for i, j in itertools.product(range(3), range(5)):
        expected[i, indices[i, j], j] = updates[i, j]
    same(OPS.npu_scatter(x, indices, updates, 1), expected)
    refused(r"must have shape \[3, 5\]", OPS.npu_scatter, x, indices, updates[:2], 1)
    half = x.half()
    same(OPS.npu_sort_v2(half, 1, True), -np.sort(-half.numpy(), axis=1))
    same(OPS.npu_sort_v2(half), np.sort(half.numpy()))
    same(OPS.npu_sort_v2.out(half, out=torch.empty(3, 4, 5, dtype=torch.float16)), np.sort(half.numpy()))
    assert OPS.npu_sort_v2(half[:0]).shape == (0, 4, 5)


def test_one_hot(facade):
    numbers = torch.tensor([[5, 3, -1], [0, 1, 4]], dtype=torch.int32)
    expected = np.where(np.arange(5) == numbers.numpy()[..., None], 0.9, 0.1).astype(np.float32)
    same(OPS.npu_one_hot(numbers, -1, 5, 0.9, 0.1), expected)
    same(OPS.npu_one_hot(numbers, 2, 5, 0.9, 0.1), expected)
    same(OPS.npu_one_hot(numbers, 0, 5, 0.9, 0.1), expected.transpose(2, 0, 1).reshape(2, 3, 5))  # as before the 950
    assert OPS.npu_one_hot(torch.tensor([1]), depth=2).dtype is torch.float32
    assert OPS.npu_one_hot(numbers[:0], depth=4).shape == (0, 3, 4)
    refused("must not be negative", OPS.npu_one_hot, numbers, -1, -1)
    refused("it must be -1 to 2", OPS.npu_one_hot, numbers, 3, 4)


@pytest.mark.parametrize(
    ("shape", "axis", "ranges"), [((9,), 0, 2), ((4, 9), 1, 4), ((9, 4), 0, 3), ((4, 2, 9), -1, 4), ((4, 9, 2), 1, 2)]
)
def test_masked_fill_range(facade, shape, axis, ranges):
    rng = np.random.default_rng(0)
    start = rng.integers(0, 6, (3, ranges))
    end = start + rng.integers(0, 4, (3, ranges))
    x, value = normal(*shape), np.array([10.0, 20.0, 30.0], dtype=np.float32)
    expected = x.numpy().copy()
    along = axis % len(shape)
    for i, j in itertools.product(range(3), range(ranges)):
        place = [slice(None)] * len(shape)
        place[along] = slice(start[i, j], end[i, j])
        if len(shape) > 1 and along == len(shape) - 1:
            place[0] = j
        expected[tuple(place)] = value[i]
    given = [torch.tensor(each).int() for each in (start, end)]
    same(OPS.npu_masked_fill_range(x, *given, torch.tensor(value), axis), expected)
    refused("axis overfloaw the range.*ERR01003", OPS.npu_masked_fill_range, x, *given, torch.tensor(value), 5)
    refused(
        "value dtype is Half and self dtype is Float.*ERR01002",
        OPS.npu_masked_fill_range,
        x,
        *given,
        torch.tensor(value).half(),
        axis,
    )
    refused("equal start loop num", OPS.npu_masked_fill_range, x, *given, torch.tensor(value)[:2], axis)


@pytest.mark.parametrize("kind", [0, 1])
def test_normalize_batch(facade, kind):
    x, lengths = normal(4, 3, 7), [2, 7, 3, 5]
    expected = np.empty((4, 3, 7))
    for n, length in enumerate(lengths):
        part = x[n, :, :length].double().numpy()
        mean = part.mean(1, keepdims=True) if kind == 0 else part.mean()
        deviation = part.std(1, ddof=1, keepdims=True) if kind == 0 else part.std(ddof=1)
        expected[n] = (x[n].double().numpy() - mean) / (deviation + 1e-5)
    found = OPS.npu_normalize_batch(x, torch.tensor(lengths, dtype=torch.int32), kind)
    torch.testing.assert_close(found.double(), torch.tensor(expected), rtol=1e-4, atol=1e-4)
    refused("got seq_len length 2self num 4.*ERR01001", OPS.npu_normalize_batch, x, torch.tensor([1, 2]))
    refused(r"range \[0, 1\], but got 2", OPS.npu_normalize_batch, x, torch.tensor(lengths), 2)


@pytest.mark.parametrize("count", [0, 1, 8, 30, 64])
def test_signs_as_bits(facade, count):
    x = normal(count, dtype=torch.float16)
    x[::3] = 0
    packed = OPS.npu_sign_bits_pack(x, 1)
    expected = np.packbits(x.numpy() >= 0, bitorder="little")
    same(packed, expected.reshape(1, -1))
    unpacked = OPS.npu_sign_bits_unpack(packed[0], 1, torch.float16)
    assert unpacked.dtype is torch.float16
    same(unpacked[0, :count], np.where(x.numpy() >= 0, 1, -1).astype(np.float16))
    assert (unpacked[0, count:] == -1).all()


def test_signs_refuse(facade):
    x, bits = normal(30), torch.ones(4, dtype=torch.uint8)
    same(OPS.npu_sign_bits_pack(x, 2), np.packbits(x.numpy() >= 0, bitorder="little").reshape(2, 2))
    refused("must be one-dimensional.*ERR01001", OPS.npu_sign_bits_pack, x[None], 1)
    refused("divisible by size", OPS.npu_sign_bits_pack, x, 3)
    refused("float16 and torch.float32.*ERR01002", OPS.npu_sign_bits_pack, x.double(), 1)
    refused("1-dimensional tensor", OPS.npu_sign_bits_unpack, bits[None], 1, torch.float32)
    refused("only supports torch.uint8", OPS.npu_sign_bits_unpack, bits.int(), 1, torch.float32)
    refused("multiple of size", OPS.npu_sign_bits_unpack, bits, 5, torch.float32)
    refused("less than or equal to zero", OPS.npu_sign_bits_unpack, bits, 0, torch.float32)
    refused("'dtype'  must be", OPS.npu_sign_bits_unpack, bits, 1, torch.bfloat16)


def test_gathers(facade):
    x, index = normal(5, 3).requires_grad_(), torch.tensor([[0, 4, 4], [1, 1, 0]], dtype=torch.int32)
    found = OPS.npu_gather_sparse_index(x, index)
    same(found.detach(), x.detach().numpy()[index.numpy()])
    grad = normal(2, 3, 3, seed=1)
    found.backward(grad)
    torch.testing.assert_close(OPS.npu_gather_sparse_index_backward(grad, [5, 3], index), x.grad)
    assert OPS.npu_gather_sparse_index(x, index[:0]).shape == (0, 3, 3)
    refused("takes int32 and int64", OPS.npu_gather_sparse_index, x, index.short())
    refused("must not greater than 8.*ERR01001", OPS.npu_gather_sparse_index, x.reshape(5, 3, *[1] * 6), index)
    y, places = normal(4, 5).requires_grad_(), torch.randint(0, 4, (2, 5))
    torch.gather(y, 0, places).backward(grad := normal(2, 5, seed=2))
    torch.testing.assert_close(OPS.npu_gather_backward(grad, [4, 5], 0, places, False), y.grad)
    sparse = OPS.npu_gather_backward(grad, [4, 5], 0, places, True)
    assert sparse.is_sparse
    torch.testing.assert_close(sparse.to_dense(), y.grad)


# --- torch_npu.contrib


def test_contrib_has_the_names_of_the_vendor(facade):
    contrib = facade.contrib
    for name in ("npu_multiclass_nms", "npu_iou", "npu_ptiou", "npu_giou", "npu_diou", "npu_ciou", "roll"):
        assert getattr(contrib, name) is getattr(contrib.function, name)
    with pytest.raises(AttributeError, match="npu_fused_attention"):
        _ = contrib.function.npu_fused_attention


def test_contrib_overlaps(facade):
    function = facade.contrib.function
    boxes, truths = torch.tensor([[0, 0, 10, 10], [5, 5, 20, 20.0]]), torch.tensor([[0, 0, 10, 20.0]])
    with pytest.warns(FutureWarning, match="torch_npu.contrib.npu_iou is deprecated"):
        found = function.npu_iou(boxes, truths)
    assert torch.equal(found, OPS.npu_ptiou(truths, boxes))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        scaled = function.npu_ptiou(boxes / 100, truths / 100, "iou", True)
        torch.testing.assert_close(scaled, found, rtol=2e-3, atol=2e-3)
        assert function.npu_giou(boxes, boxes).shape == (2, 1)
        assert torch.equal(function.npu_giou(boxes, boxes), function.npu_giou(boxes.t(), boxes.t(), is_permuted=False))
        four = torch.rand(4, 6) + 1
        assert torch.equal(function.npu_diou(four, four.flip(1)), OPS.npu_diou(four, four.flip(1), True))
        assert torch.equal(
            function.npu_ciou(four, four.flip(1)), OPS.npu_ciou(four, four.flip(1), True, False, 0, True)
        )
        refused(r"mode in \[iou, ptiou\].*ERR01003", function.npu_iou, boxes, truths, "giou", error=ValueError)
        refused("boxes1.shape == boxes2.shape", function.npu_giou, boxes, truths, error=ValueError)


def test_contrib_coders(facade):
    function = facade.contrib.function
    boxes, truths = torch.tensor([[0, 0, 10, 10], [5, 5, 20, 20]]), torch.tensor([[1, 2, 10, 20], [5, 6, 19, 20]])
    offsets = function.npu_bbox_coder_encode_xyxy2xywh(boxes, truths)
    assert torch.equal(offsets, OPS.npu_bounding_box_encode(boxes.float(), truths.float(), 0, 0, 0, 0, 1, 1, 1, 1))
    fractions = function.npu_bbox_coder_encode_xyxy2xywh(
        boxes / 64, truths / 64, is_normalized=True, normalized_scale=64
    )
    assert torch.equal(fractions, offsets)
    decoded = function.npu_bbox_coder_decode_xywh2xyxy(boxes, offsets, max_shape=(20, 15))
    torch.testing.assert_close(decoded, truths.float().minimum(torch.tensor([14, 19, 14, 19.0])), rtol=0.01, atol=0.05)
    strides = torch.tensor([8, 16])
    yolo = function.npu_bbox_coder_encode_yolo(boxes, truths, strides)
    assert torch.equal(yolo, OPS.npu_yolo_boxes_encode(boxes.float(), truths.float(), strides.int()))
    flags = function.npu_single_level_responsible_flags((3, 4), truths, (8, 8), 2)
    assert flags.shape == (24,)
    for coder in (function.npu_bbox_coder_encode_xyxy2xywh, function.npu_bbox_coder_decode_xywh2xyxy):
        refused(r"bboxes.size\(0\) == ", coder, boxes, truths[:1], error=ValueError)
        refused(r"bboxes.size\(-1\) == .* == 4", coder, boxes[:, :3], truths, error=ValueError)


def test_contrib_suppression(facade):
    function = facade.contrib.function
    rng = np.random.default_rng(0)
    low = rng.uniform(0, 20, (2, 15, 2))
    boxes = torch.tensor(np.concatenate([low, low + rng.uniform(2, 9, (2, 15, 2))], -1)).float()
    scores, factors = torch.rand(2, 15, 4), torch.rand(2, 15)
    found, labels = function.npu_batched_multiclass_nms(boxes, scores, 0.1, 0.4, 20, factors)
    assert found.shape == (2, 20, 5)
    assert found.dtype is torch.float16
    kept = OPS.npu_batch_nms(boxes[:, :, None].half(), (scores[..., :3] * factors[..., None]).half(), 0.1, 0.4, 20, 20)
    assert torch.equal(found, torch.cat([kept[0], kept[1][..., None]], -1))
    assert torch.equal(labels, kept[2])
    one, its_labels = function.npu_multiclass_nms(boxes[1], scores[1], 0.1, 0.4, 20, factors[1])
    assert torch.equal(one, found[1])
    assert torch.equal(its_labels, labels[1])


def test_contrib_of_transformers(facade):
    function = facade.contrib.function
    x = normal(2, 4, 5, 3).requires_grad_()
    found = function.roll(x, shifts=(-1, 2), dims=(1, 2))
    same(found.detach(), np.roll(x.detach().numpy(), (-1, 2), (1, 2)))
    found.sum().backward()
    assert (x.grad == 1).all()
    refused(r"x.dim\(\) == 4", function.roll, x[0], (1, 1), (1, 2), error=ValueError)
    a, b = normal(2, 3, 4), normal(2, 5, 4)
    torch.testing.assert_close(function.matmul_transpose(a, b), torch.einsum("bik,bjk->bij", a, b))
    condition = a > 0
    for value in (0, 1, 2.5):
        same(
            function.npu_fast_condition_index_put(a, condition, value),
            np.where(condition.numpy(), np.float32(value), a.numpy()),
        )
    refused("condition.dtype in", function.npu_fast_condition_index_put, a, condition.int(), 0, error=TypeError)
    scores, mask = normal(1, 2, 6, 6), normal(1, 1, 6, 6, seed=1)
    found = function.fuse_add_softmax_dropout(True, torch.nn.Identity(), mask, scores, 16)
    torch.testing.assert_close(found, torch.softmax(mask + scores / math.sqrt(16), -1))
    refused("between 0 and 1", function.dropout_with_byte_mask, a, 2.0, error=ValueError)
    refused("no-inplace", function.dropout_with_byte_mask, a, 0.5, True, True, error=ValueError)

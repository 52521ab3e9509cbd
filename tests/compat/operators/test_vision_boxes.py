"""Operators about boxes against formulas of their own: coding, overlap, suppression and choice.

Holds box_coding.py, box_overlap.py, box_rotated.py and box_selection.py in src/toprope/compat/torch_npu/operators.
"""

import itertools
import math

import numpy as np
import pytest
import torch

TYPES = (torch.float16, torch.float32)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def corner_boxes(count, seed=0, scale=20.0):
    rng = np.random.default_rng(seed)
    low = rng.uniform(0, scale, (count, 2))
    return np.concatenate([low, low + rng.uniform(1, scale / 2, (count, 2))], axis=1)


def close(actual, expected, tolerance=1e-5):
    torch.testing.assert_close(
        actual.double(), torch.as_tensor(np.asarray(expected)).double(), rtol=tolerance, atol=tolerance
    )


def refused(text, function, *args, error=RuntimeError, **kwargs):
    with pytest.raises(error, match=f"(?s){text}"):
        function(*args, **kwargs)


# --- coding


@pytest.mark.parametrize("dtype", TYPES)
def test_boxes_are_encoded_in_half_precision_and_decoded(facade, dtype):
    ops = torch.ops.npu
    boxes, truths = corner_boxes(40, 1), corner_boxes(40, 2)
    means, stds = (0.1, -0.1, 0.0, 0.2), (0.1, 0.2, 0.5, 1.0)
    expected = []
    for (a, b, c, d), (e, f, g, h) in zip(boxes, truths, strict=True):
        raw = (
            ((e + g) / 2 - (a + c) / 2) / (c - a + 1),
            ((f + h) / 2 - (b + d) / 2) / (d - b + 1),
            math.log((g - e + 1) / (c - a + 1)),
            math.log((h - f + 1) / (d - b + 1)),
        )
        expected.append([(value - mean) / std for value, mean, std in zip(raw, means, stds, strict=True)])
    first, second = torch.tensor(boxes).to(dtype), torch.tensor(truths).to(dtype)
    offsets = ops.npu_bounding_box_encode(first, second, *means, *stds)
    assert offsets.dtype is dtype
    close(offsets, expected, 0.05)
    assert torch.equal(offsets, offsets.half().to(dtype))  # of float32 too
    again = ops.npu_bounding_box_decode(first, offsets, *means, *stds, [100, 100], 1e-3)
    close(again, truths, 0.1)


def test_decoding_stays_in_the_image_and_below_the_ratio(facade):
    decode = torch.ops.npu.npu_bounding_box_decode
    box, plain = torch.tensor([[10.0, 20.0, 19.0, 29.0]]), (0, 0, 0, 0, 1, 1, 1, 1)
    moved = decode(box, torch.tensor([[9.0, -9.0, 0.0, 0.0]]), *plain, [50, 70], 0.016)
    assert moved.tolist() == [[69.0, 0.0, 69.0, 0.0]]
    grown = decode(box, torch.tensor([[0.0, 0.0, 5.0, -5.0]]), *plain, [50, 70], 0.5)  # at most twice, at least half
    close(grown, [[14.5 - 10 + 0.5, 24.5 - 2.5 + 0.5, 14.5 + 10 - 0.5, 24.5 + 2.5 - 0.5]], 0.02)


def test_coding_refuses(facade):
    ops, boxes, plain = torch.ops.npu, torch.ones(3, 4), (0, 0, 0, 0, 1, 1, 1, 1)
    refused("takes float16 and float32", ops.npu_bounding_box_encode, boxes.double(), boxes.double(), *plain)
    refused("one dtype", ops.npu_bounding_box_encode, boxes, boxes.half(), *plain)
    refused(r"shape \(N, 4\)", ops.npu_bounding_box_encode, boxes, boxes[:2], *plain)
    refused("must not be 0", ops.npu_bounding_box_encode, boxes, boxes, 0, 0, 0, 0, 1, 1, 0, 1)
    refused("height and a width", ops.npu_bounding_box_decode, boxes, boxes, *plain, [3], 0.1)
    refused("greater than 0", ops.npu_bounding_box_decode, boxes, boxes, *plain, [3, 3], 0.0)
    assert ops.npu_bounding_box_encode(boxes[:0], boxes[:0], *plain).shape == (0, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_rotated_boxes(facade, dtype):
    rng = np.random.default_rng(0)
    weight = np.array([1.0, 2.0, 1.0, 0.5, 1.0])

    def some():
        low = rng.uniform(0, 20, (2, 2, 6))
        return np.concatenate([low, low + rng.uniform(4, 20, (2, 2, 6)), rng.uniform(-60, 60, (2, 1, 6))], axis=1)

    anchors, truths = some(), some()
    expected = np.empty_like(anchors)
    for i, j in itertools.product(range(2), range(6)):
        a, t = anchors[i, :, j], truths[i, :, j]
        size, other = a[2:4] - a[:2], t[2:4] - t[:2]
        expected[i, :2, j] = ((t[:2] + t[2:4]) - (a[:2] + a[2:4])) / 2 / size
        expected[i, 2:4, j] = np.log(other / size)
        expected[i, 4, j] = math.tan(math.radians(t[4])) - math.tan(math.radians(a[4]))
    arguments = [torch.tensor(each, dtype=dtype) for each in (anchors, truths, weight)]
    offsets = torch.ops.npu.npu_rotated_box_encode(*arguments)
    close(offsets, expected * weight[:, None], 1e-5 if dtype is torch.float32 else 0.05)
    again = torch.ops.npu.npu_rotated_box_decode(arguments[0], offsets, arguments[2])
    close(again, truths, 1e-4 if dtype is torch.float32 else 0.2)
    refused("must have 5", torch.ops.npu.npu_rotated_box_encode, *arguments[:2], arguments[2][:4])


def test_yolo_offsets(facade):
    boxes, truths = corner_boxes(30, 3), corner_boxes(30, 4)
    strides = np.random.default_rng(0).integers(1, 40, 30)
    expected = []
    for (a, b, c, d), (e, f, g, h), stride in zip(boxes, truths, strides, strict=True):
        x, y = ((e + g - a - c) / 2 / stride + 0.5, (f + h - b - d) / 2 / stride + 0.5)
        sides = [math.log(max(s, 1e-6)) for s in ((g - e) / (c - a), (h - f) / (d - b))]
        expected.append([min(max(x, 1e-6), 1 - 1e-6), min(max(y, 1e-6), 1 - 1e-6), *sides])
    encode = torch.ops.npu.npu_yolo_boxes_encode
    first, second, stride = (torch.tensor(boxes).float(), torch.tensor(truths).float(), torch.tensor(strides).int())
    close(encode(first, second, stride), expected)
    assert encode(first, first - torch.tensor([0, 0, 99.0, 0]), stride)[0, 2] == math.log(1e-6)
    refused("Non-empty 2D anchor_boxes.*ERR01001", encode, first[:, :3], second, stride)
    refused("max .20480. num, but got num 20481", encode, torch.ones(20481, 4), second, stride)
    refused("int32 strdie tensor.*Long.*ERR01002", encode, first, second, stride.long())
    refused("should be equal gt_bboxes' num", encode, first, second, stride[:2])


def test_anchor_flags(facade):
    boxes, (height, width), anchors = corner_boxes(50, 5, 60.0), (6, 7), 3
    expected = np.zeros(height * width * anchors)
    for a, b, c, d in boxes:
        column = min(max(math.floor((a + c) / 2 / 8), 0), width - 1)
        row = min(max(math.floor((b + d) / 2 / 10), 0), height - 1)
        expected[(row * width + column) * anchors : (row * width + column + 1) * anchors] = 1
    flags = torch.ops.npu.npu_anchor_response_flags(torch.tensor(boxes).float(), [height, width], [8, 10], anchors)
    assert flags.dtype is torch.uint8
    assert flags.tolist() == expected.tolist()
    none = torch.ops.npu.npu_anchor_response_flags(torch.ones(0, 4), [2, 2], [1, 1], 2)
    assert none.tolist() == [0] * 8
    refused(
        "Half|float16 or float32.*BFloat16",
        torch.ops.npu.npu_anchor_response_flags,
        torch.ones(1, 4).bfloat16(),
        [2, 2],
        [1, 1],
        2,
    )


@pytest.mark.parametrize("everything", [True, False])
def test_grid_assignment(facade, everything):
    rng = np.random.default_rng(1)
    truths, boxes = 5, 40
    overlaps = rng.integers(0, 10, (truths, boxes)) / 10  # equal values happen
    flags = rng.integers(0, 2, boxes)
    start = rng.uniform(-1, 0, boxes)
    best, which = overlaps.max(0), overlaps.argmax(0)
    best_box, which_box = overlaps.max(1), overlaps.argmax(1)
    expected = start.copy()
    for box in range(boxes):
        if best[box] > 0.7 and flags[box]:
            expected[box] = which[box] + 1
    for truth in range(truths):
        if best_box[truth] > 0.3:
            chosen = np.flatnonzero(overlaps[truth] == best_box[truth]) if everything else [which_box[truth]]
            for box in chosen:
                if flags[box]:
                    expected[box] = truth + 1
    reals = [torch.tensor(each).float() for each in (start, overlaps, best, best_box)]
    whole = [torch.tensor(each).int() for each in (which, which_box)]
    found = torch.ops.npu.npu_grid_assign_positive(
        reals[0], reals[1], torch.tensor(flags, dtype=torch.uint8), reals[2], whole[0], reals[3], whole[1], 128, 0.7,
        0.3, everything,
    )  # fmt: skip
    close(found, expected)
    refused(
        "int32 argmax_overlaps tensor expected", torch.ops.npu.npu_grid_assign_positive, reals[0], reals[1],
        torch.tensor(flags, dtype=torch.uint8), reals[2], whole[0].long(), reals[3], whole[1], 5, 0.7, 0.3, True,
    )  # fmt: skip


# --- overlap


@pytest.mark.parametrize("mode", [0, 1])
def test_iou(facade, mode):
    boxes, truths = corner_boxes(8, 6), corner_boxes(5, 7)
    expected = np.zeros((5, 8))
    for i, j in itertools.product(range(5), range(8)):
        (a, b, c, d), (e, f, g, h) = truths[i], boxes[j]
        overlap = max(min(c, g) - max(a, e), 0) * max(min(d, h) - max(b, f), 0)
        truth, area = (c - a + 0.01) * (d - b + 0.01), (g - e + 0.01) * (h - f + 0.01)
        expected[i, j] = overlap / (truth if mode else truth + area - overlap)
    found = torch.ops.npu.npu_iou(torch.tensor(boxes).float(), torch.tensor(truths).float(), mode)
    assert found.dtype is torch.float32
    assert torch.equal(found, found.half().float())
    close(found, expected, 5e-3)
    assert torch.equal(found, torch.ops.npu.npu_ptiou(torch.tensor(boxes).float(), torch.tensor(truths).float(), mode))
    assert torch.ops.npu.npu_iou(torch.ones(0, 4), torch.ones(2, 4)).shape == (2, 0)
    refused(r"shape \(N, 4\)", torch.ops.npu.npu_iou, torch.ones(2, 5), torch.ones(2, 4))


def test_iou_rounds_as_the_card(facade):
    """Values that a 910B gives, of which the rounding is visible."""
    boxes = torch.tensor([[18, 45, 80, 130], [38, 85, 70, 230.0]])
    found = torch.ops.npu.npu_iou(boxes, torch.tensor([[10, 55, 85, 160.0]]))
    assert [round(value, 4) for value in found[0].tolist()] == [0.5474, 0.2373]
    same = torch.ops.npu.npu_iou(torch.tensor([[10, 10, 20, 20.0]]), torch.tensor([[10, 10, 20, 20.0]]))
    assert round(same.item(), 4) == 0.9961


def measure(kind, box, truth, trans, mode=0):
    """GIoU, DIoU or CIoU of two boxes, in plain Python."""
    (a, b, c, d), (e, f, g, h) = box, truth
    if trans:
        (a, b, c, d), (e, f, g, h) = ((x - w / 2, y - t / 2, x + w / 2, y + t / 2) for x, y, w, t in (box, truth))
    overlap = max(min(c, g) - max(a, e), 0) * max(min(d, h) - max(b, f), 0)
    area, other = (c - a) * (d - b), (g - e) * (h - f)
    union = area + other - overlap
    width, height = max(c, g) - min(a, e), max(d, h) - min(b, f)
    iou = overlap / (other if mode else union)
    if kind == "giou":
        return iou - (width * height - union) / (width * height)
    distance = ((a + c - e - g) ** 2 + (b + d - f - h) ** 2) / 4 / (width**2 + height**2)
    if kind == "diou":
        return iou - distance
    v = 4 / math.pi**2 * (math.atan((g - e) / (h - f)) - math.atan((c - a) / (d - b))) ** 2
    return iou - distance - v * v / (1 - iou + v)


def columns(count, seed, trans):
    boxes = corner_boxes(count, seed)
    if trans:
        boxes = np.concatenate([(boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]], axis=1)
    return boxes.T.copy()


@pytest.mark.parametrize("kind", ["diou", "ciou"])
@pytest.mark.parametrize(("trans", "cross", "mode"), [(True, False, 0), (False, True, 0), (True, True, 1)])
def test_distance_and_complete_iou(facade, kind, trans, cross, mode):
    boxes, truths = columns(6, 8, trans), columns(6 if not cross else 4, 9, trans)
    operator = getattr(torch.ops.npu, f"npu_{kind}")
    if cross:
        expected = [[measure(kind, box, truth, trans, mode) for box in boxes.T] for truth in truths.T]
    else:
        expected = [[measure(kind, *pair, trans, mode) for pair in zip(boxes.T, truths.T, strict=True)]]
    first, second = torch.tensor(boxes).float(), torch.tensor(truths).float()
    close(operator(first, second, trans, cross, mode), expected)
    assert operator(first.half(), second, trans, cross, mode).dtype is torch.float16


def test_generalised_iou(facade):
    boxes, truths = columns(6, 10, True), columns(6, 11, True)
    first, second = torch.tensor(boxes).float(), torch.tensor(truths).float()
    expected = [[measure("giou", *pair, True)] for pair in zip(boxes.T, truths.T, strict=True)]
    close(torch.ops.npu.npu_giou(first, second, True), expected)
    refused("giou backward only support trans==True.*ERR01001", torch.ops.npu.npu_giou, first, second)
    refused("must be >= 2", torch.ops.npu.npu_giou, first[0], second[0], True)
    refused("ciou expected input in 2D, but input gtboxes", torch.ops.npu.npu_ciou, first, second[0])
    refused("self has to be a 2D Tensor", torch.ops.npu.npu_diou, first[0], second)
    refused("the same for both", torch.ops.npu.npu_diou, first, second[:, :2], True)


@pytest.mark.parametrize("kind", ["giou", "diou", "ciou"])
def test_gradients_of_overlaps(facade, kind):
    """By differences for the first two; CIoU holds alpha constant, so its differences do too."""
    boxes, truths = columns(4, 12, True), columns(4, 13, True)
    first = torch.tensor(boxes).float().requires_grad_()
    second = torch.tensor(truths).float().requires_grad_()
    operator = getattr(torch.ops.npu, f"npu_{kind}")
    found = operator(first, second, True) if kind == "giou" else operator(first, second, True, False, 0)
    weight = torch.rand(found.shape, generator=generator())
    found.backward(weight)
    extra = (torch.zeros(1, 4),) if kind == "ciou" else ()
    backward = getattr(torch.ops.npu, f"npu_{kind}_backward")
    of_boxes, of_truths = backward(weight, first.detach(), second.detach(), *extra, True, False, 0)
    torch.testing.assert_close(of_boxes, first.grad)
    torch.testing.assert_close(of_truths, second.grad)
    if kind == "ciou":
        return
    step, flat = 1e-6, weight.flatten().numpy()
    for row, column in itertools.product(range(4), range(4)):
        moved = [boxes[:, column].copy(), boxes[:, column].copy()]
        moved[0][row] += step
        moved[1][row] -= step
        values = [measure(kind, box, truths[:, column], True) for box in moved]
        slope = (values[0] - values[1]) / 2 / step * flat[column]
        assert abs(slope - float(of_boxes[row, column])) < 1e-4


def polygon_overlap(box, other):
    """Area of the overlap of two rotated boxes by clipping one polygon with the edges of the other."""

    def corners(x, y, w, h, angle):
        c, s = math.cos(math.radians(angle)), math.sin(math.radians(angle))
        return [
            (x + u * w * c - v * h * s, y + u * w * s + v * h * c)
            for u, v in ((-0.5, -0.5), (0.5, -0.5), (0.5, 0.5), (-0.5, 0.5))
        ]

    polygon, clip = corners(*box), corners(*other)
    for (ax, ay), (bx, by) in zip(clip, [*clip[1:], clip[0]], strict=True):
        sides = [(bx - ax) * (y - ay) - (by - ay) * (x - ax) for x, y in polygon]
        cut = []
        for index, point in enumerate(polygon):
            before, side, side_before = polygon[index - 1], sides[index], sides[index - 1]
            if side * side_before < 0:
                t = side_before / (side_before - side)
                cut.append((before[0] + t * (point[0] - before[0]), before[1] + t * (point[1] - before[1])))
            if side >= 0:
                cut.append(point)
        polygon = cut
        if not polygon:
            return 0.0
    pairs = zip(polygon, [*polygon[1:], polygon[0]], strict=True)
    return abs(sum(ax * by - bx * ay for (ax, ay), (bx, by) in pairs)) / 2


def rotated(count, seed):
    rng = np.random.default_rng(seed)
    return np.concatenate(
        [rng.uniform(0, 12, (count, 2)), rng.uniform(2, 10, (count, 2)), rng.uniform(-180, 180, (count, 1))], axis=1
    )


def test_rotated_overlaps(facade):
    boxes, others = rotated(9, 0), rotated(7, 1)
    area = np.array([[polygon_overlap(box, other) for other in others] for box in boxes])
    first, second = torch.tensor(boxes)[None].float(), torch.tensor(others)[None].float()
    assert (area > 0).any()
    assert (area == 0).any()
    close(torch.ops.npu.npu_rotated_overlaps(first, second)[0], area, 1e-4)
    union = (boxes[:, 2] * boxes[:, 3])[:, None] + (others[:, 2] * others[:, 3])[None] - area
    close(torch.ops.npu.npu_rotated_iou(first, second)[0], area / union, 1e-4)
    as_corners = torch.cat(
        [first[..., :2] - first[..., 2:4] / 2, first[..., :2] + first[..., 2:4] / 2, first[..., 4:]], -1
    )
    close(
        torch.ops.npu.npu_rotated_overlaps(as_corners, as_corners, True)[0].diagonal(), boxes[:, 2] * boxes[:, 3], 1e-4
    )
    assert torch.ops.npu.npu_rotated_overlaps(first[:, :0], second).shape == (1, 0, 7)
    refused("ndimension.* and equal to 3!.*ERR01001", torch.ops.npu.npu_rotated_overlaps, first[0], second[0])
    refused("only IoU", torch.ops.npu.npu_rotated_iou, first, second, False, 1)


@pytest.mark.parametrize("mode", [0, 1])
def test_rotated_suppression(facade, mode):
    boxes = rotated(25, 2)
    scores = np.random.default_rng(3).permutation(25) / 25  # one is 0, which is not greater than the threshold
    given = boxes.copy()
    if mode == 1:
        given[:, :2], given[:, 2:4] = boxes[:, :2] - boxes[:, 2:4] / 2, boxes[:, :2] + boxes[:, 2:4] / 2
        given[:, 4] = -boxes[:, 4]
    kept = []
    for box in np.argsort(-scores):
        areas = [(polygon_overlap(boxes[box], boxes[k]), boxes[box, 2:4].prod() + boxes[k, 2:4].prod()) for k in kept]
        if scores[box] > 0 and all(o / (s - o) <= 0.2 for o, s in areas):
            kept.append(int(box))
    numbers, count = torch.ops.npu.npu_nms_rotated(
        torch.tensor(given).float(), torch.tensor(scores).float(), 0.2, 0.0, -1, mode
    )
    assert numbers.dtype is torch.int32
    assert numbers.tolist() == kept
    assert count.tolist() == [len(kept)]
    few, _ = torch.ops.npu.npu_nms_rotated(torch.tensor(given).float(), torch.tensor(scores).float(), 0.2, 0.0, 2, mode)
    assert few.tolist() == kept[:2]
    none, count = torch.ops.npu.npu_nms_rotated(torch.ones(0, 5), torch.ones(0), 0.2)
    assert none.tolist() == []
    assert count.tolist() == [0]
    refused("takes 0 and 1", torch.ops.npu.npu_nms_rotated, torch.ones(1, 5), torch.ones(1), 0.2, 0.0, -1, 2)


# --- suppression


def plain_iou(a, b):
    overlap = max(min(a[2], b[2]) - max(a[0], b[0]), 0) * max(min(a[3], b[3]) - max(a[1], b[1]), 0)
    return overlap / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - overlap)


def greedy(boxes, order, threshold, most):
    kept = []
    for box in order:
        if len(kept) < most and all(plain_iou(boxes[box], boxes[k]) <= threshold for k in kept):
            kept.append(int(box))
    return kept


@pytest.mark.parametrize("own_boxes", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
def test_batch_suppression(facade, own_boxes, dtype):
    images, count, classes, each, total = 2, 30, 3, 6, 12
    rng = np.random.default_rng(4)
    boxes = corner_boxes(images * count * (classes if own_boxes else 1), 14).astype(np.float16).astype(np.float64)
    boxes = boxes.reshape(images, count, -1, 4)
    scores = rng.permutation(images * count * classes).reshape(images, count, classes) / 256  # exact in float16
    found = torch.ops.npu.npu_batch_nms(
        torch.tensor(boxes).to(dtype), torch.tensor(scores).to(dtype), 0.2, 0.4, each, total
    )
    assert [tensor.dtype for tensor in found] == [dtype, dtype, dtype, torch.int32]
    assert [list(tensor.shape) for tensor in found] == [[2, 12, 4], [2, 12], [2, 12], [2]]
    for image in range(images):
        results = []
        for kind in range(classes):
            own = boxes[image, :, kind if own_boxes else 0]
            order = [box for box in np.argsort(-scores[image, :, kind]) if scores[image, box, kind] > 0.2]
            results += [(scores[image, box, kind], kind, own[box]) for box in greedy(own, order, 0.4, each)]
        results = sorted(results, key=lambda result: -result[0])[:total]
        number = len(results)
        assert found[3][image] == number
        close(found[1][image, :number], [result[0] for result in results])
        assert found[2][image, :number].tolist() == [result[1] for result in results]
        close(found[0][image, :number], [result[2] for result in results])
        assert not any(tensor[image, number:].any() for tensor in found[:3])


def test_batch_suppression_of_little_and_what_it_refuses(facade):
    nms = torch.ops.npu.npu_batch_nms
    boxes, scores = torch.tensor(corner_boxes(2)).float()[None, :, None], torch.tensor([[[0.9], [0.1]]])
    kept, best, _, count = nms(boxes, scores, 0.5, 0.5, 5, 7)
    assert kept.shape == (1, 7, 4)
    assert count.tolist() == [1]
    assert best[0, 1:].tolist() == [0.0] * 6
    assert nms(boxes, scores, 1.0, 0.5, 5, 7)[3].tolist() == [0]
    refused("is an empty tensor.*ERR01001", nms, boxes[:, :0], scores[:, :0], 0.5, 0.5, 5, 7)
    refused("clip window", nms, boxes, scores, 0.5, 0.5, 5, 7, True)
    refused("transpose_box=True is not simulated", nms, boxes, scores, 0.5, 0.5, 5, 7, False, True)
    refused("max_total_size is 0", nms, boxes, scores, 0.5, 0.5, 5, 0)
    refused("boxes for 2 classes", nms, boxes.expand(1, 2, 2, 4), scores.expand(1, 2, 3), 0.5, 0.5, 5, 7)
    refused("takes float16", nms, boxes.double(), scores.double(), 0.5, 0.5, 5, 7)


def test_suppression_v4(facade):
    boxes = corner_boxes(30, 15)
    scores = np.random.default_rng(5).permutation(30) / 30
    order = [box for box in np.argsort(-scores) if scores[box] > 0.3]
    kept = greedy(boxes, order, 0.3, 12)
    swapped = boxes[:, [2, 3, 0, 1]]  # any two opposite corners
    for given in (boxes, swapped):
        numbers, count = torch.ops.npu.npu_nms_v4(
            torch.tensor(given).float(), torch.tensor(scores).float(), 12, torch.tensor(0.3), torch.tensor(0.3)
        )
        assert numbers.tolist() == kept + [0] * (12 - len(kept))
        assert count.item() == len(kept)
        assert count.dim() == 0
    refused(
        "must not be negative",
        torch.ops.npu.npu_nms_v4,
        torch.ones(1, 4),
        torch.ones(1),
        -1,
        torch.tensor(0.3),
        torch.tensor(0.3),
    )


@pytest.mark.parametrize("width", [5, 8])
def test_suppression_with_a_mask(facade, width):
    boxes = corner_boxes(40, 16)
    kept = greedy(boxes, range(40), 0.3, 40)
    rows = np.concatenate([boxes, np.arange(40, 0, -1)[:, None], np.zeros((40, width - 5))], axis=1)
    with_scores, numbers, mask = torch.ops.npu.npu_nms_with_mask(torch.tensor(rows).float(), 0.3)
    assert numbers.tolist() == list(range(40))
    assert numbers.dtype is torch.int32
    assert mask.dtype is torch.uint8
    assert mask.nonzero().flatten().tolist() == kept
    close(with_scores, rows[:, :5])
    empty = torch.ops.npu.npu_nms_with_mask(torch.ones(0, width), 0.3)
    assert [tensor.shape[0] for tensor in empty] == [0, 0, 0]
    refused(r"\(N, 8\) or \(N, 5\)", torch.ops.npu.npu_nms_with_mask, torch.ones(2, 4), 0.3)


# --- choice


def test_random_choice(facade):
    choose = torch.ops.npu.npu_random_choice_with_mask
    x = torch.rand(5, 6, generator=generator()) > 0.4
    true = [tuple(place) for place in x.nonzero().tolist()]
    indices, valid = choose(x, len(true) + 3)
    assert [tuple(place) for place in indices[valid].tolist()] == true
    assert indices.dtype is torch.int32
    assert not indices[~valid].any()
    assert valid.tolist() == [True] * len(true) + [False] * 3
    few, valid = choose(x, 4, 7, 1)
    assert valid.all()
    assert len({tuple(place) for place in few.tolist()}) == 4
    assert {tuple(place) for place in few.tolist()} <= set(true)
    assert torch.equal(few, choose(x, 4, 7, 1)[0])
    torch.manual_seed(3)
    again = choose(x, 4)[0]
    torch.manual_seed(3)
    assert torch.equal(again, choose(x, 4)[0])
    refused("should be bool, but getFloat.*ERR01002", choose, x.float())
    refused("count must greater than 0, but get0.*ERR01003", choose, x, 0)
    refused(r"in \[1, 5\], but get0", choose, torch.tensor(True))


def test_sub_sample(facade):
    labels = torch.tensor([1] * 10 + [0] * 30 + [-1] * 5, dtype=torch.int32)[torch.randperm(45, generator=generator())]
    found = torch.ops.npu.npu_sub_sample(labels, 16, 0.25)
    assert (found == 1).sum() == 4
    assert (found == 0).sum() == 12
    assert torch.equal(found[found != -1], labels[found != -1])
    everything = torch.ops.npu.npu_sub_sample(labels, 100, 0.5)
    assert torch.equal(everything, labels)
    assert everything is not labels
    refused("1 dimension", torch.ops.npu.npu_sub_sample, labels[None], 16, 0.25)

"""Selection of boxes: non-maximum suppression, and random choice of samples.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free. Tests: tests/compat/operators/test_vision_boxes.py for values and refusals,
tests/sim/simulated/test_npu_operators.py for shapes and the card.

Sources: the vendor's pages and *KernelNpu.cpp of Ascend/op-plugin; the kernels nms_with_mask_common.py and
batch_multi_class_non_max_suppression.py of CANN 8.1; NonMaxSuppressionV4 of TensorFlow, which npu_nms_v4 follows.
"""

from __future__ import annotations

import torch

from toprope.sim.dtypes import scalar_name

from .._error_codes import ErrCode, ops_error
from .checks import floating, refuse
from .evaluation import has_values
from .registry import operator

__all__ = [
    "npu_batch_nms",
    "npu_nms_v4",
    "npu_nms_with_mask",
    "npu_random_choice_with_mask",
    "npu_sub_sample",
]

_MAX_KEPT = 1000
_MAX_DIMS = 5


def _areas(boxes: torch.Tensor) -> torch.Tensor:
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


def _overlap(boxes: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Areas of the intersections of boxes (..., 4) that broadcast."""
    low, high = torch.maximum(boxes[..., :2], others[..., :2]), torch.minimum(boxes[..., 2:], others[..., 2:])
    return (high - low).clamp(min=0).prod(dim=-1)


def _suppress(
    boxes: torch.Tensor, scores: torch.Tensor, valid: torch.Tensor, threshold: torch.Tensor | float, most: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Greedy suppression of many sets at once.

    Args:
        boxes: (..., N, 4).
        scores: (..., N).
        valid: (..., N), boxes that may be chosen.
        threshold: the IoU above which a box goes.
        most: number of boxes to choose.

    Returns:
        numbers of the chosen boxes, (..., most), and which of them were chosen; the others are 0.
    """
    areas, alive = _areas(boxes), valid
    numbers, chosen = [], []
    for _ in range(min(most, boxes.shape[-2])):
        best = torch.where(alive, scores, -torch.inf).argmax(dim=-1, keepdim=True)
        found = alive.gather(-1, best)
        box = boxes.gather(-2, best[..., None].expand(*best.shape, 4))
        overlap = _overlap(boxes, box)
        total = areas + areas.gather(-1, best)
        # IoU > t is overlap > (area + area) * t / (1 + t), which needs no division by the union
        alive = alive & (overlap <= total * (threshold / (1 + threshold)))
        alive = alive.scatter(-1, best, False)
        numbers.append(torch.where(found, best, 0))
        chosen.append(found)
    missing = most - len(numbers)
    empty = scores.new_zeros(*scores.shape[:-1], missing, dtype=torch.int64)
    return torch.cat([*numbers, empty], dim=-1), torch.cat([*chosen, empty.bool()], dim=-1)


@operator("npu_batch_nms")
def npu_batch_nms(
    self: torch.Tensor,
    scores: torch.Tensor,
    score_threshold: float,
    iou_threshold: float,
    max_size_per_class: int,
    max_total_size: int,
    change_coordinate_frame: bool = False,
    transpose_box: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Non-maximum suppression for each class of each image; the best boxes of all classes.

    The kernel takes float16; float32 inputs are rounded to it.

    Args:
        self: boxes (B, N, q, 4), xyxy, q either 1 or the number of classes; float16 or float32.
        scores: (B, N, classes), of the same dtype.
        score_threshold: boxes whose score is not greater go.
        iou_threshold: boxes whose IoU with a better one of the class is greater go.
        max_size_per_class: the most boxes of each class, 1 to 1000.
        max_total_size: the most boxes of each image, 1 to 1000.
        change_coordinate_frame: must be False, as the operator has no clip window.
        transpose_box: True is not simulated.

    Returns:
        boxes (B, max_total_size, 4), scores and classes (B, max_total_size) in the dtype of `self`, in descending order
        of the scores and 0 after the last; and their number (B,), int32.

    Raises:
        RuntimeError: any other argument, shape or dtype.
    """
    name = "npu_batch_nms"
    if not self.numel():
        raise RuntimeError("The input tensor [self] is an empty tensor." + ops_error(ErrCode.PARAM))
    if self.dtype not in (torch.float16, torch.float32) or scores.dtype != self.dtype:
        refuse(name, f"boxes are {self.dtype} and scores {scores.dtype}; the kernel takes float16, for both")
    if self.dim() != 4 or scores.dim() != 3 or self.shape[3] != 4 or self.shape[:2] != scores.shape[:2]:
        shapes = f"{list(self.shape)} and {list(scores.shape)}"
        refuse(name, f"boxes and scores must have shapes (B, N, q, 4) and (B, N, classes), but got {shapes}")
    classes = scores.shape[2]
    if self.shape[2] not in (1, classes):
        refuse(name, f"boxes for {self.shape[2]} classes; there must be 1 or {classes}, as many as classes of scores")
    for which, size in (("max_size_per_class", max_size_per_class), ("max_total_size", max_total_size)):
        if not 1 <= size <= _MAX_KEPT:
            refuse(name, f"{which} is {size}; the kernel takes 1 to {_MAX_KEPT}")
    if change_coordinate_frame:
        refuse(name, "change_coordinate_frame is True; the kernel takes it only with a clip window")
    if transpose_box:
        refuse(name, "transpose_box=True is not simulated")
    boxes = self.half().float().transpose(1, 2).expand(-1, classes, -1, -1)
    values = scores.half().float().transpose(1, 2)
    numbers, chosen = _suppress(boxes, values, values > score_threshold, iou_threshold, max_size_per_class)
    found = boxes.gather(2, numbers[..., None].expand(-1, -1, -1, 4)).flatten(1, 2)
    best = torch.where(chosen, values.gather(2, numbers), -torch.inf).flatten(1)
    labels = torch.arange(classes, device=self.device)[:, None].expand(classes, max_size_per_class).flatten()
    order = best.argsort(dim=1, descending=True, stable=True)[:, :max_total_size]
    valid = best.gather(1, order) > -torch.inf
    results = (
        torch.where(valid[..., None], found.gather(1, order[..., None].expand(-1, -1, 4)), 0.0),
        torch.where(valid, best.gather(1, order), 0.0),
        torch.where(valid, labels[order], 0),
    )
    missing = max_total_size - order.shape[1]
    padded = [torch.cat([each, each.new_zeros(each.shape[0], missing, *each.shape[2:])], 1) for each in results]
    kept = [each.to(self.dtype) for each in padded]
    return kept[0], kept[1], kept[2], valid.sum(dim=1).to(torch.int32)


@operator("npu_nms_v4")
def npu_nms_v4(
    self: torch.Tensor,
    scores: torch.Tensor,
    max_output_size: float,
    iou_threshold: torch.Tensor,
    scores_threshold: torch.Tensor,
    pad_to_max_output_size: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Boxes in the order of their scores, without those that overlap a better one.

    Args:
        self: (N, 4), two opposite corners of each box; float16, bfloat16 or float32.
        scores: (N,).
        max_output_size: number of results.
        iou_threshold: 0 dimensions; boxes whose IoU with a better one is greater go.
        scores_threshold: 0 dimensions; so do boxes whose score is not greater.
        pad_to_max_output_size: the result has this size in any case.

    Returns:
        numbers of the boxes (max_output_size,), 0 after the last; and their number with 0 dimensions; both int32.

    Raises:
        RuntimeError: another shape or dtype.
    """
    floating("npu_nms_v4", self=self, scores=scores)
    if self.dim() != 2 or self.shape[1] != 4 or scores.shape != self.shape[:1]:
        shapes = f"{list(self.shape)} and {list(scores.shape)}"
        refuse("npu_nms_v4", f"boxes and scores must have shapes (N, 4) and (N,), but got {shapes}")
    size = int(max_output_size)
    if size < 0:
        refuse("npu_nms_v4", f"max_output_size is {size}; it must not be negative")
    first, second = torch.split(self.float(), 2, dim=1)
    boxes = torch.cat([torch.minimum(first, second), torch.maximum(first, second)], dim=1)
    values = scores.float()
    threshold, lowest = iou_threshold.float().to(self.device), scores_threshold.float().to(self.device)
    numbers, chosen = _suppress(boxes, values, values > lowest, threshold, size)
    return numbers.to(torch.int32), chosen.sum().to(torch.int32)


@operator("npu_nms_with_mask")
def npu_nms_with_mask(input: torch.Tensor, iou_threshold: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Flags of the boxes that do not overlap one before them, in the order of the input.

    Args:
        input: (N, 8) or (N, 5): x1, y1, x2, y2, the score and, where there are 8, values of no meaning; best score
            first. float16 or float32.
        iou_threshold: boxes whose IoU with one before them is greater go.

    Returns:
        boxes with scores (N, 5), of the dtype of `input`; 0 to N - 1 (N,), int32; and the flags (N,), uint8.

    Raises:
        RuntimeError: another shape or dtype.
    """
    name = "npu_nms_with_mask"
    if input.dtype not in (torch.float16, torch.float32):
        refuse(name, f"input is {input.dtype}; the kernel takes float16 and float32")
    if input.dim() != 2 or input.shape[1] not in (5, 8):
        refuse(name, f"input must have shape (N, 8) or (N, 5), but got {list(input.shape)}")
    count = input.shape[0]
    numbers = torch.arange(count, dtype=torch.int32, device=input.device)
    return input[:, :5].clone(), numbers, _mask(input[:, :4].float(), float(iou_threshold))


def _mask(boxes: torch.Tensor, threshold: float) -> torch.Tensor:
    """Flags of the boxes (N, 4) that do not overlap one before them."""
    if not has_values(boxes):
        return boxes.new_empty(boxes.shape[0], dtype=torch.uint8)
    areas = _areas(boxes)
    limit = (areas[:, None] + areas[None]) * (threshold / (1 + threshold))
    over = (_overlap(boxes[:, None], boxes[None]) > limit).cpu()
    alive = torch.ones(boxes.shape[0], dtype=torch.bool)
    for row in range(boxes.shape[0]):
        if alive[row]:
            alive[row + 1 :] &= ~over[row, row + 1 :]
    return alive.to(torch.uint8).to(boxes.device)


def _generator(seed: int, seed2: int) -> torch.Generator | None:
    """Generator of two seeds; None for torch's own where both are 0."""
    return torch.Generator().manual_seed(seed ^ (seed2 << 32)) if seed or seed2 else None


def _draw(candidates: torch.Tensor, count: int, generator: torch.Generator | None = None) -> torch.Tensor:
    """The candidates (rows, on the CPU); where there are more than `count`, as many drawn without replacement."""
    if candidates.shape[0] <= count:
        return candidates
    return candidates[torch.randperm(candidates.shape[0], generator=generator)[:count]]


@operator("npu_random_choice_with_mask")
def npu_random_choice_with_mask(
    x: torch.Tensor, count: int = 256, seed: int = 0, seed2: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Random choice of the elements that are True.

    Args:
        x: 1 to 5 dimensions, bool.
        count: number of elements, greater than 0.
        seed: with `seed2`, of the choice; with both 0 it follows torch's seed. The numbers drawn are not a card's.
        seed2: see `seed`.

    Returns:
        indices (count, dimensions), int32, 0 where fewer elements are True; and which rows are indices (count,), bool.

    Raises:
        RuntimeError: another dtype, number of dimensions or count.
    """
    if x.dtype is not torch.bool:
        text = f"The input.dtype should be bool, but get{scalar_name(x.dtype)}"
        raise RuntimeError(text + ops_error(ErrCode.TYPE))
    if not 1 <= x.dim() <= _MAX_DIMS:
        raise RuntimeError(f"The input.dim should be in [1, 5], but get{x.dim()}" + ops_error(ErrCode.PARAM))
    if count <= 0:
        raise RuntimeError(f"The count must greater than 0, but get{count}" + ops_error(ErrCode.VALUE))
    if not has_values(x):
        return x.new_empty(count, x.dim(), dtype=torch.int32), x.new_empty(count)
    drawn = _draw(x.cpu().nonzero(), count, _generator(seed, seed2))
    indices = torch.zeros(count, x.dim(), dtype=torch.int32)
    indices[: drawn.shape[0]] = drawn.to(torch.int32)
    return indices.to(x.device), (torch.arange(count) < drawn.shape[0]).to(x.device)


@operator("npu_sub_sample")
def npu_sub_sample(self: torch.Tensor, per_images: int, positive_fraction: float) -> torch.Tensor:
    """Random choice of positive and negative samples; the labels of the others become -1.

    At most per_images * positive_fraction positive samples stay, and negative ones up to per_images together. Source:
    SubSampleKernelNpu.cpp of op-plugin and subsample_labels of detectron2, whose operator it is.

    Args:
        self: labels (N,): 0 negative, -1 ignored, others positive.
        per_images: number of samples to keep.
        positive_fraction: the most that may be positive.

    Returns:
        labels (N,).

    Raises:
        RuntimeError: another number of dimensions.
    """
    if self.dim() != 1:
        refuse("npu_sub_sample", f"labels must have 1 dimension, but got {self.dim()}")
    if not has_values(self):
        return torch.empty_like(self)
    labels = self.cpu()
    positive = _draw(((labels != -1) & (labels != 0)).nonzero().flatten(), int(per_images * positive_fraction))
    negative = _draw((labels == 0).nonzero().flatten(), per_images - positive.shape[0])
    kept = torch.cat([positive, negative])
    return torch.full_like(labels, -1).index_copy(0, kept, labels[kept]).to(self.device)

"""Overlap of rotated boxes, and the suppression of those that overlap.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free. Tests: tests/compat/operators/test_vision_boxes.py for values and refusals,
tests/sim/simulated/test_npu_operators.py for shapes and the card.

The overlap of two boxes is the convex polygon of the corners of each that lie in the other and of the points where
their edges cross. Sources: the vendor's pages, RotatedIouKernelNpu.cpp, RotatedOverlapsKernelNpu.cpp and
NmsRotatedKernelNpu.cpp of Ascend/op-plugin, its tests test_rotated_iou.py, test_rotated_overlaps.py and
test_nms_rotated.py, and the kernels rotated_overlaps.py and rotated_iou.py of CANN 8.1.
"""

from __future__ import annotations

import torch

from .._error_codes import ErrCode, ops_error
from .checks import floating, refuse
from .evaluation import has_values
from .registry import operator

__all__ = ["npu_nms_rotated", "npu_rotated_iou", "npu_rotated_overlaps"]

_EPS = 1e-6
_NO_AREA = 1e-14
_ON_EDGE = 1e-5
"""Part of a side by which rounding may move a corner of the one box off the edge of the other."""


def _as_centres(boxes: torch.Tensor) -> torch.Tensor:
    """Boxes given as x1, y1, x2, y2, angle in the last axis, as x, y, width, height, angle."""
    low, high, angle = torch.split(boxes, [2, 2, 1], dim=-1)
    return torch.cat([(low + high) * 0.5, high - low, angle], dim=-1)


def _corners(boxes: torch.Tensor) -> torch.Tensor:
    """Corners (..., 4, 2), in order around the box, of boxes (..., 5) with an angle in degrees."""
    angle = torch.deg2rad(boxes[..., 4:])
    cosine, sine = torch.cos(angle), torch.sin(angle)
    along = torch.cat([cosine, sine], dim=-1) * boxes[..., 2:3] * 0.5
    across = torch.cat([-sine, cosine], dim=-1) * boxes[..., 3:4] * 0.5
    offsets = torch.stack([-along - across, along - across, along + across, across - along], dim=-2)
    return boxes[..., None, :2] + offsets


def _cross(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]


def _inside(points: torch.Tensor, box: torch.Tensor) -> torch.Tensor:
    """Flags of the points (..., 4, 2) that lie in the box of these corners, or on its edge."""
    along, across = box[..., 1:2, :] - box[..., :1, :], box[..., 3:4, :] - box[..., :1, :]
    offset = points - box[..., :1, :]
    within = points.new_ones((), dtype=torch.bool)
    for side in (along, across):
        shadow, length = (offset * side).sum(dim=-1), side.square().sum(dim=-1)
        within = within & (shadow >= -_ON_EDGE * length) & (shadow <= (1 + _ON_EDGE) * length)
    return within


def _crossings(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Points (..., 16, 2) where the edges of two boxes cross, and which of them there are."""
    start, start_b = a[..., :, None, :], b[..., None, :, :]
    end, end_b = a.roll(-1, dims=-2)[..., :, None, :], b.roll(-1, dims=-2)[..., None, :, :]
    side_of_a = _cross(start_b - start, end_b - start) * _cross(start_b - end, end_b - end)
    side_of_b = _cross(start - start_b, end - start_b) * _cross(start - end_b, end - end_b)
    crossing = (side_of_a < 0) & (side_of_b < 0)
    direction, direction_b = end - start, end_b - start_b
    slope = torch.where(crossing, _cross(direction, direction_b), 1.0)
    points = start + direction * (_cross(start_b - start, direction_b) / slope)[..., None]
    return points.flatten(-3, -2), crossing.flatten(-2)


def _overlap_area(boxes: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Areas of the overlaps of boxes (..., 5) given as x, y, width, height, angle, which broadcast."""
    middle = (boxes[..., :2] + others[..., :2]) * 0.5  # small coordinates lose less in float32
    a, b = (
        _corners(torch.cat([each[..., :2] - middle, each[..., 2:].expand(*middle.shape[:-1], 3)], dim=-1))
        for each in (boxes, others)
    )
    crossings, crossing = _crossings(a, b)
    points = torch.cat([a, b, crossings], dim=-2)
    valid = torch.cat([_inside(a, b), _inside(b, a), crossing], dim=-1)
    first = valid.to(torch.int64).argmax(dim=-1)[..., None, None].expand(*points.shape[:-2], 1, 2)
    points = torch.where(valid[..., None], points, points.gather(-2, first))  # one of the corners again: no area
    count = valid.sum(dim=-1)
    centre = (points * valid[..., None]).sum(dim=-2) / count.clamp(min=1)[..., None]
    offset = points - centre[..., None, :]
    order = torch.atan2(offset[..., 1], offset[..., 0]).argsort(dim=-1)
    offset = offset.gather(-2, order[..., None].expand_as(offset))
    area = _cross(offset, offset.roll(-1, dims=-2)).sum(dim=-1).abs() * 0.5
    return torch.where(count > 2, area, 0.0)


def _pairs(name: str, boxes: torch.Tensor, others: torch.Tensor, trans: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Both sets in float32 as x, y, width, height, angle, of shapes (B, N, 1, 5) and (B, 1, K, 5)."""
    floating(name, self=boxes, query_boxes=others)
    if boxes.shape[2] != 5 or others.shape[2] != 5 or boxes.shape[0] != others.shape[0]:
        shapes = f"{list(boxes.shape)} and {list(others.shape)}"
        refuse(name, f"boxes must have shapes (B, N, 5) and (B, K, 5), but got {shapes}")
    first, second = boxes.float(), others.float()
    if trans:
        first, second = _as_centres(first), _as_centres(second)
    return first[:, :, None], second[:, None]


@operator("npu_rotated_overlaps")
def npu_rotated_overlaps(self: torch.Tensor, query_boxes: torch.Tensor, trans: bool = False) -> torch.Tensor:
    """Area of the overlap of each pair of rotated boxes.

    Args:
        self: (B, N, 5): x, y, width, height and the angle in degrees, or x1, y1, x2, y2 and the angle if `trans`.
        query_boxes: (B, K, 5), alike.
        trans: how the boxes are given.

    Returns:
        (B, N, K), of the dtype of `self`; computed in float32.

    Raises:
        RuntimeError: another shape or dtype.
    """
    if self.dim() != 3 or query_boxes.dim() != 3:
        text = "boxes' dim should be equal to query_boxes' ndimension() and equal to 3!"
        raise RuntimeError(text + ops_error(ErrCode.PARAM))
    return _overlap_area(*_pairs("npu_rotated_overlaps", self, query_boxes, trans)).to(self.dtype)


@operator("npu_rotated_iou")
def npu_rotated_iou(
    self: torch.Tensor,
    query_boxes: torch.Tensor,
    trans: bool = False,
    mode: int = 0,
    is_cross: bool = True,
    v_threshold: float = 0.0,
    e_threshold: float = 0.0,
) -> torch.Tensor:
    """Intersection over union of each pair of rotated boxes.

    Args:
        self: (B, N, 5): x, y, width, height and the angle in degrees, or x1, y1, x2, y2 and the angle if `trans`.
        query_boxes: (B, K, 5), alike.
        trans: how the boxes are given.
        mode: 0; the kernel has no other.
        is_cross: each pair is computed in any case, as op-plugin asks for a result (B, N, K).
        v_threshold: without effect: op-plugin gives it to the kernel under a name that the kernel does not have.
        e_threshold: as `v_threshold`.

    Returns:
        (B, N, K), of the dtype of `self`; computed in float32.

    Raises:
        RuntimeError: another shape, dtype or mode.
    """
    if self.dim() != 3 or query_boxes.dim() != 3:
        raise RuntimeError(ops_error(ErrCode.PARAM))
    if mode != 0:
        refuse("npu_rotated_iou", f"mode is {mode}; the kernel computes only IoU, mode 0")
    first, second = _pairs("npu_rotated_iou", self, query_boxes, trans)
    overlap = _overlap_area(first, second)
    area, other = first[..., 2] * first[..., 3], second[..., 2] * second[..., 3]
    return (overlap / (area + other - overlap + _EPS)).to(self.dtype)


@operator("npu_nms_rotated")
def npu_nms_rotated(
    self: torch.Tensor,
    scores: torch.Tensor,
    iou_threshold: float,
    scores_threshold: float = 0,
    max_output_size: int = -1,
    mode: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotated boxes in the order of their scores, without those that overlap one before them.

    Args:
        self: (N, 5): x, y, width, height and the angle in degrees if `mode` is 0; x1, y1, x2, y2 and the angle, which
            turns the other way, if it is 1.
        scores: (N,).
        iou_threshold: boxes of which the IoU with one before is greater go.
        scores_threshold: so do boxes whose score is not greater.
        max_output_size: the most boxes to keep; -1 for any number.
        mode: 0 or 1.

    Returns:
        the kept boxes' numbers (M,) and M as a tensor (1,), both int32. In shape inference M is N.

    Raises:
        RuntimeError: another shape, dtype or mode.
    """
    floating("npu_nms_rotated", self=self, scores=scores)
    if self.dim() != 2 or self.shape[1] != 5 or scores.shape != self.shape[:1]:
        shapes = f"{list(self.shape)} and {list(scores.shape)}"
        refuse("npu_nms_rotated", f"boxes and scores must have shapes (N, 5) and (N,), but got {shapes}")
    if mode not in (0, 1):
        refuse("npu_nms_rotated", f"mode is {mode}; the kernel takes 0 and 1")
    if not has_values(self, scores):
        count = self.shape[0] if max_output_size < 0 else min(self.shape[0], max_output_size)
        return self.new_empty(count, dtype=torch.int32), self.new_empty(1, dtype=torch.int32)
    boxes = self.float()
    if mode == 1:
        boxes = _as_centres(boxes) * torch.tensor([1.0, 1.0, 1.0, 1.0, -1.0], dtype=boxes.dtype, device=boxes.device)
    order = scores.float().argsort(descending=True, stable=True)
    order = order[scores[order] > scores_threshold]
    boxes = boxes[order]
    overlap = _overlap_area(boxes[:, None], boxes[None])
    area = boxes[:, 2] * boxes[:, 3]
    there = area > _NO_AREA
    ratio = overlap / (area[:, None] + area[None] - overlap)
    over = there[:, None] & there[None] & (ratio > iou_threshold)
    kept = order[_greedy(over, max_output_size).to(order.device)]
    return kept.to(torch.int32), torch.tensor([kept.shape[0]], dtype=torch.int32, device=self.device)


def _greedy(over: torch.Tensor, most: int) -> torch.Tensor:
    """Numbers of the rows to keep, in order: each kept row removes those after it that it is over."""
    rows = over.cpu()
    alive = torch.ones(rows.shape[0], dtype=torch.bool)
    kept: list[int] = []
    for row in range(rows.shape[0]):
        if most >= 0 and len(kept) == most:
            break
        if alive[row]:
            kept.append(row)
            alive &= ~rows[row]
    return torch.tensor(kept, dtype=torch.int64)

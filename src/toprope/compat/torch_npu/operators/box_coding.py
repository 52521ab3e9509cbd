"""Encoding of detection boxes, and assignment of boxes to grid cells.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free. Tests: tests/compat/operators/test_vision_boxes.py for values and refusals,
tests/sim/simulated/test_npu_operators.py for shapes and the card.

Sources: the vendor's pages, tests (test_base_ops) and *KernelNpu.cpp of Ascend/op-plugin; the kernels of CANN 8.1
(bounding_box_encode.py, whose arithmetic is float16 for float32 boxes too, and bounding_box_decode.py); and the values
that the vendor's tests expect of a 910B, also those of test_bbox_coder.py of Ascend/pytorch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from toprope.sim.dtypes import scalar_name

from .._error_codes import ErrCode, ops_error
from .checks import floating, refuse
from .registry import operator

__all__ = [
    "npu_anchor_response_flags",
    "npu_bounding_box_decode",
    "npu_bounding_box_encode",
    "npu_grid_assign_positive",
    "npu_rotated_box_decode",
    "npu_rotated_box_encode",
    "npu_yolo_boxes_encode",
]

_EPS = 1e-6
_MAX_ANCHORS = 20480
_INTEGRAL = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32)


def _pair_of_boxes(operator: str, first: torch.Tensor, second: torch.Tensor) -> None:
    for tensor in (first, second):
        if tensor.dtype not in (torch.float16, torch.float32):
            refuse(operator, f"boxes of {tensor.dtype}; the kernel takes float16 and float32")
    if first.dtype != second.dtype:
        refuse(operator, f"both inputs must have one dtype, but got {first.dtype} and {second.dtype}")
    if first.dim() != 2 or first.shape[1] != 4 or first.shape != second.shape:
        refuse(operator, f"both inputs must have shape (N, 4), but got {list(first.shape)} and {list(second.shape)}")


def _centre(boxes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Centres and sizes of xyxy boxes, both (N, 2); a box from 1 to 3 has size 3."""
    low, high = boxes[:, :2], boxes[:, 2:]
    return (low + high) * 0.5, high - low + 1


@operator("npu_bounding_box_encode")
def npu_bounding_box_encode(
    anchor_box: torch.Tensor,
    ground_truth_box: torch.Tensor,
    means0: float,
    means1: float,
    means2: float,
    means3: float,
    stds0: float,
    stds1: float,
    stds2: float,
    stds3: float,
) -> torch.Tensor:
    """Offsets from anchors to ground truth boxes, as Faster R-CNN learns them.

    With px, py, pw, ph the centre and size of the anchor and gx, gy, gw, gh those of the ground truth, where a size is
    end - start + 1, the result is ((gx - px) / pw, (gy - py) / ph, log(gw / pw), log(gh / ph)), less the means, over
    the standard deviations. All of it is float16 arithmetic; a ground truth box of negative size gives NaN.

    Args:
        anchor_box: (N, 4), xyxy; float16 or float32.
        ground_truth_box: as `anchor_box`.
        means0: subtracted from the first offset; the others alike.
        means1: see `means0`.
        means2: see `means0`.
        means3: see `means0`.
        stds0: divides the first offset; the others alike.
        stds1: see `stds0`.
        stds2: see `stds0`.
        stds3: see `stds0`.

    Returns:
        (N, 4), of the dtype of `anchor_box`.

    Raises:
        RuntimeError: another dtype or shape, or a standard deviation of 0.
    """
    _pair_of_boxes("npu_bounding_box_encode", anchor_box, ground_truth_box)
    stds = (stds0, stds1, stds2, stds3)
    if not all(stds):
        refuse("npu_bounding_box_encode", f"the standard deviations {list(stds)} must not be 0")
    (anchor, size), (truth, truth_size) = _centre(anchor_box.half()), _centre(ground_truth_box.half())
    offsets = torch.cat([(truth - anchor) / size, torch.log(truth_size / size)], dim=1)
    means = torch.tensor([-means0, -means1, -means2, -means3], dtype=offsets.dtype, device=offsets.device)
    scale = torch.tensor([1 / std for std in stds], dtype=offsets.dtype, device=offsets.device)
    return ((offsets + means) * scale).to(anchor_box.dtype)


@operator("npu_bounding_box_decode")
def npu_bounding_box_decode(
    rois: torch.Tensor,
    deltas: torch.Tensor,
    means0: float,
    means1: float,
    means2: float,
    means3: float,
    stds0: float,
    stds1: float,
    stds2: float,
    stds3: float,
    max_shape: Sequence[int],
    wh_ratio_clip: float,
) -> torch.Tensor:
    """Boxes from regions of interest and offsets: the inverse of npu_bounding_box_encode.

    The offsets are times the standard deviations plus the means; those of the sizes are limited to |log(wh_ratio_clip)|
    in both directions. With the centre (gx, gy) and size (gw, gh) that follow, the box is gx - gw / 2 + 0.5 to
    gx + gw / 2 - 0.5, and so for y, limited to the image. Computed in float32.

    Args:
        rois: (N, 4), xyxy; float16 or float32.
        deltas: (N, 4), offsets; of the same dtype.
        means0: added to the first offset; the others alike.
        means1: see `means0`.
        means2: see `means0`.
        means3: see `means0`.
        stds0: multiplies the first offset; the others alike.
        stds1: see `stds0`.
        stds2: see `stds0`.
        stds3: see `stds0`.
        max_shape: height and width of the image.
        wh_ratio_clip: limit of the ratio of the sizes.

    Returns:
        (N, 4), xyxy, of the dtype of `rois`.

    Raises:
        RuntimeError: another dtype or shape, a `max_shape` that is not two numbers, or a ratio that is not positive.
    """
    _pair_of_boxes("npu_bounding_box_decode", rois, deltas)
    if len(max_shape) != 2:
        refuse("npu_bounding_box_decode", f"max_shape {list(max_shape)} must be a height and a width")
    if wh_ratio_clip <= 0:
        refuse("npu_bounding_box_decode", f"wh_ratio_clip {wh_ratio_clip} must be greater than 0")
    centre, size = _centre(rois.float())
    offsets = deltas.float()
    offsets = offsets * torch.tensor([stds0, stds1, stds2, stds3], dtype=offsets.dtype, device=offsets.device)
    offsets = offsets + torch.tensor([means0, means1, means2, means3], dtype=offsets.dtype, device=offsets.device)
    limit = abs(math.log(wh_ratio_clip))
    size_to = torch.exp(offsets[:, 2:].clamp(-limit, limit)) * size
    centre_to = offsets[:, :2] * size + centre
    half = size_to * 0.5
    boxes = torch.cat([centre_to - half + 0.5, centre_to + half - 0.5], dim=1)
    edge = torch.tensor([max_shape[1] - 1, max_shape[0] - 1] * 2, dtype=boxes.dtype, device=boxes.device)
    return torch.minimum(boxes.clamp(min=0), edge).to(rois.dtype)


def _rotated(operator: str, boxes: torch.Tensor, other: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Check the three inputs of the rotated box operators; return the weight as (1, 5, 1) in float32."""
    floating(operator, self=boxes, other=other)
    if boxes.dim() != 3 or boxes.shape[1] != 5 or boxes.shape != other.shape:
        refuse(operator, f"boxes must have shape (B, 5, N), but got {list(boxes.shape)} and {list(other.shape)}")
    if weight.numel() != 5:
        refuse(operator, f"weight has {weight.numel()} elements; it must have 5")
    return weight.reshape(1, 5, 1).float()


def _rotated_parts(boxes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Centres and sizes (B, 2, N) and tangents (B, 1, N) of boxes given as x1, y1, x2, y2 and an angle in degrees."""
    low, high, angle = torch.split(boxes.float(), [2, 2, 1], dim=1)
    return (low + high) * 0.5, high - low, torch.tan(torch.deg2rad(angle))


@operator("npu_rotated_box_encode")
def npu_rotated_box_encode(self: torch.Tensor, gt_bboxes: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Offsets from rotated anchors to rotated ground truth boxes.

    The result is ((gx - px) / pw, (gy - py) / ph, log(gw / pw), log(gh / ph), tan(gt) - tan(pt)) times the weights,
    where t is the angle. Source: the values of test_rotated_box.py of op-plugin.

    Args:
        self: anchors (B, 5, N): x1, y1, x2, y2 and the angle in degrees; float16, bfloat16 or float32.
        gt_bboxes: as `self`.
        weight: (5,).

    Returns:
        (B, 5, N), of the dtype of `self`.

    Raises:
        RuntimeError: another dtype or shape.
    """
    scale = _rotated("npu_rotated_box_encode", self, gt_bboxes, weight)
    (anchor, size, tangent), (truth, truth_size, truth_tangent) = _rotated_parts(self), _rotated_parts(gt_bboxes)
    offsets = [(truth - anchor) / size, torch.log(truth_size / size), truth_tangent - tangent]
    return (torch.cat(offsets, dim=1) * scale).to(self.dtype)


@operator("npu_rotated_box_decode")
def npu_rotated_box_decode(self: torch.Tensor, deltas: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Rotated boxes from anchors and offsets: the inverse of npu_rotated_box_encode.

    Args:
        self: anchors (B, 5, N): x1, y1, x2, y2 and the angle in degrees; float16, bfloat16 or float32.
        deltas: (B, 5, N).
        weight: (5,); divides the offsets.

    Returns:
        (B, 5, N): x1, y1, x2, y2 and the angle in degrees, of the dtype of `self`.

    Raises:
        RuntimeError: another dtype or shape.
    """
    scale = _rotated("npu_rotated_box_decode", self, deltas, weight)
    centre, size, tangent = _rotated_parts(self)
    move, grow, turn = torch.split(deltas.float() / scale, [2, 2, 1], dim=1)
    centre_to, half = move * size + centre, torch.exp(grow) * size * 0.5
    angle = torch.rad2deg(torch.atan(tangent + turn))
    return torch.cat([centre_to - half, centre_to + half, angle], dim=1).to(self.dtype)


@operator("npu_yolo_boxes_encode")
def npu_yolo_boxes_encode(
    self: torch.Tensor, gt_bboxes: torch.Tensor, stride: torch.Tensor, performance_mode: bool = False
) -> torch.Tensor:
    """Offsets from anchors to ground truth boxes, as YOLO learns them.

    Of the centres: ((gx - px) / stride + 0.5, and so for y), limited to [1e-6, 1 - 1e-6]; of the sizes:
    log(max(gw / pw, 1e-6)). Sources: the vendor's page, YOLOBBoxCoder of mmdetection and test_yolo_boxes_encode.py.

    Args:
        self: anchors (N, 4), xyxy; float16 or float32; N at most 20480.
        gt_bboxes: (N, 4), xyxy.
        stride: (N,), of an integer dtype of at most 32 bits.
        performance_mode: lets a card compute with less precision; without effect here.

    Returns:
        (N, 4), of the dtype of `gt_bboxes`.

    Raises:
        RuntimeError: another shape or dtype.
    """
    if self.dim() != 2 or self.shape[1] != 4:
        text = f"Non-empty 2D anchor_boxes tensor expected but got a tensor with sizes {list(self.shape)}"
        raise RuntimeError(text + ops_error(ErrCode.PARAM))
    if self.shape[0] > _MAX_ANCHORS:
        text = f"anchor_boxes only support max [20480] num, but got num {self.shape[0]}"
        raise RuntimeError(text + ops_error(ErrCode.PARAM))
    if gt_bboxes.dim() != 2 or gt_bboxes.shape[1] != 4:
        text = f"Non-empty 2D gt_bboxes tensor expected but got a tensor with sizes {list(gt_bboxes.shape)}"
        raise RuntimeError(text + ops_error(ErrCode.PARAM))
    if stride.dim() != 1:
        text = f"Non-empty 1D stride tensor expected but got a tensor with sizes {list(stride.shape)}"
        raise RuntimeError(text + ops_error(ErrCode.PARAM))
    if stride.shape[0] != gt_bboxes.shape[0]:
        text = f"stride's length should be equal gt_bboxes' num, but got stride length {stride.shape[0]}"
        raise RuntimeError(f"{text}gt_bboxes num {gt_bboxes.shape[0]}" + ops_error(ErrCode.PARAM))
    if stride.dtype not in _INTEGRAL:
        text = f"int32 strdie tensor expected but got a tensor with dtype: {scalar_name(stride.dtype)}"
        raise RuntimeError(text + ops_error(ErrCode.TYPE))
    _pair_of_boxes("npu_yolo_boxes_encode", self, gt_bboxes)
    anchor, truth = self.float(), gt_bboxes.float()
    move = (truth[:, :2] + truth[:, 2:] - anchor[:, :2] - anchor[:, 2:]) * 0.5 / stride.float()[:, None] + 0.5
    grow = (truth[:, 2:] - truth[:, :2]) / (anchor[:, 2:] - anchor[:, :2])
    offsets = [move.clamp(_EPS, 1 - _EPS), torch.log(grow.clamp(min=_EPS))]
    return torch.cat(offsets, dim=1).to(gt_bboxes.dtype)


@operator("npu_anchor_response_flags")
def npu_anchor_response_flags(
    self: torch.Tensor, featmap_size: Sequence[int], stride: Sequence[int], num_base_anchors: int
) -> torch.Tensor:
    """Flags of the anchors in whose cell the centre of a ground truth box lies.

    Args:
        self: ground truth boxes (N, 4), xyxy; float16 or float32.
        featmap_size: height and width of the feature map.
        stride: size of a cell in the image, of which the first is for x and the second for y.
        num_base_anchors: anchors of each cell.

    Returns:
        (height * width * num_base_anchors,), uint8. A centre outside the map counts for the cell at its edge.

    Raises:
        RuntimeError: another shape or dtype.
    """
    if len(featmap_size) != 2:
        text = f"expected feat_map_size equals to 2, but got size {len(featmap_size)}"
        raise RuntimeError(text + ops_error(ErrCode.PARAM))
    if self.dim() != 2 or self.shape[1] != 4:
        text = f"Non-empty 2D gt_bboxes tensor expected but got a tensor with sizes {list(self.shape)}"
        raise RuntimeError(text + ops_error(ErrCode.PARAM))
    if self.dtype not in (torch.float16, torch.float32):
        text = f"float16 or float32 tensor expected but got a tensor with dtype: {scalar_name(self.dtype)}"
        raise RuntimeError(text + ops_error(ErrCode.TYPE))
    if not all(stride):
        refuse("npu_anchor_response_flags", f"stride {list(stride)} must not contain 0")
    height, width = featmap_size
    boxes = self.float()
    centres = (boxes[:, :2] + boxes[:, 2:]) * 0.5
    column = torch.floor(centres[:, 0] / stride[0]).long().clamp(0, width - 1)
    row = torch.floor(centres[:, 1] / stride[1]).long().clamp(0, height - 1)
    flags = torch.zeros(height * width, dtype=torch.uint8, device=self.device)
    flags = flags.scatter(0, row * width + column, 1)
    return flags[:, None].repeat(1, num_base_anchors).flatten()


@operator("npu_grid_assign_positive")
def npu_grid_assign_positive(
    self: torch.Tensor,
    overlaps: torch.Tensor,
    box_responsible_flags: torch.Tensor,
    max_overlaps: torch.Tensor,
    argmax_overlaps: torch.Tensor,
    gt_max_overlaps: torch.Tensor,
    gt_argmax_overlaps: torch.Tensor,
    num_gts: int,
    pos_iou_thr: float,
    min_pos_iou: float,
    gt_max_assign_all: bool,
) -> torch.Tensor:
    """Assign boxes to ground truths, as GridAssigner of mmdetection does for its positive samples.

    A responsible box whose best overlap is above `pos_iou_thr` gets its best ground truth. Then each ground truth whose
    best overlap is above `min_pos_iou`, in order, gets its best responsible box, or all that have this overlap.

    Args:
        self: (N,), what is assigned so far; float16 or float32.
        overlaps: (K, N), of ground truths and boxes.
        box_responsible_flags: (N,), uint8.
        max_overlaps: (N,), the best overlap of each box.
        argmax_overlaps: (N,), int32, its ground truth.
        gt_max_overlaps: (K,), the best overlap of each ground truth.
        gt_argmax_overlaps: (K,), int32, its box.
        num_gts: number of ground truths; at most K count.
        pos_iou_thr: overlap above which a box is positive.
        min_pos_iou: overlap above which a ground truth gets a box.
        gt_max_assign_all: all boxes that have the best overlap of a ground truth, rather than the first.

    Returns:
        (N,): 1 + the number of the ground truth, or the value of `self`.

    Raises:
        RuntimeError: indices of another dtype, or shapes that do not fit.
    """
    for name, tensor in (("argmax_overlaps", argmax_overlaps), ("gt_argmax_overlaps", gt_argmax_overlaps)):
        if tensor.dtype not in _INTEGRAL:
            text = f"int32 {name} tensor expected but got a tensor with dtype: {scalar_name(tensor.dtype)}"
            raise RuntimeError(text + ops_error(ErrCode.TYPE))
    if overlaps.dim() != 2 or self.dim() != 1 or overlaps.shape[1] != self.shape[0]:
        shapes = f"{list(self.shape)} and {list(overlaps.shape)}"
        refuse("npu_grid_assign_positive", f"self and overlaps must have shapes (n,) and (k, n), but got {shapes}")
    count = min(max(num_gts, 0), overlaps.shape[0])
    responsible = box_responsible_flags == 1
    positive = (max_overlaps > pos_iou_thr) & responsible
    assigned = torch.where(positive, (argmax_overlaps + 1).to(self.dtype), self)
    numbers = torch.arange(1, count + 1, device=self.device)
    wanted = gt_max_overlaps[:count] > min_pos_iou
    if gt_max_assign_all:
        match = (overlaps[:count] == gt_max_overlaps[:count, None]) & responsible & wanted[:, None]
        last = torch.cat([(match * numbers[:, None]), match.new_zeros(1, self.shape[0])]).amax(dim=0)
    else:
        chosen = gt_argmax_overlaps[:count].long()
        wanted = wanted & responsible[chosen]
        last = torch.zeros_like(self, dtype=torch.int64).scatter_reduce(0, chosen, numbers * wanted, "amax")
    return torch.where(last > 0, last.to(self.dtype), assigned)

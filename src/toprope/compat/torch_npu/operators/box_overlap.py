"""Overlap measures of axis-parallel boxes: IoU, GIoU, DIoU and CIoU.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml, results and refusals the vendor's documents and code; how a value is composed of torch's
operators is free, but must stay differentiable where that table says so. Tests:
tests/compat/operators/test_vision_boxes.py for values and refusals, tests/sim/simulated/test_npu_operators.py for
shapes and the card.

Sources: the vendor's pages; IouKernelNpu.cpp, GiouKernelNpu.cpp, DiouKernelNpu.cpp and CiouKernelNpu.cpp of
Ascend/op-plugin; the formulas and values of its tests test_iou.py, test_npu_giou.py, test_npu_diou.py and test_ciou.py;
for the arithmetic of IoU also the values of test/contrib/test_iou.py of Ascend/pytorch, and mindspore.ops.iou.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from .._error_codes import ErrCode, ops_error
from .checks import compute_dtype, floating, refuse
from .evaluation import gradients, on_950
from .registry import operator

__all__ = [
    "_npu_ciou",
    "npu_ciou",
    "npu_ciou_backward",
    "npu_diou",
    "npu_diou_backward",
    "npu_giou",
    "npu_giou_backward",
    "npu_iou",
    "npu_ptiou",
]

_IOU_EPS = 0.01
_IOU_SCALE = 0.2
_EPS = 1e-9
_GIOU_EPS = 1e-16


def _pairwise(bboxes: torch.Tensor, gtboxes: torch.Tensor, mode: int, newest: bool) -> torch.Tensor:
    """Overlap of each ground truth (row) with each box, in the arithmetic of the inputs' dtype.

    The sides have an epsilon; on the Ascend 950 (`newest`) those of the intersection too. Before it, the sides are
    times 0.2, which keeps areas in the range of float16.
    """
    scale = 1.0 if newest else _IOU_SCALE
    low = torch.maximum(gtboxes[:, None, :2], bboxes[None, :, :2])
    high = torch.minimum(gtboxes[:, None, 2:], bboxes[None, :, 2:])
    sides = ((high - low + _IOU_EPS if newest else high - low) * scale).clamp(min=0)
    overlap = sides[..., 0] * sides[..., 1]
    own, truth = (((boxes[:, 2:] - boxes[:, :2] + _IOU_EPS) * scale).unbind(-1) for boxes in (bboxes, gtboxes))
    area = (truth[0] * truth[1])[:, None]
    return overlap / (area if mode == 1 else (own[0] * own[1])[None] - overlap + area)


@operator("npu_iou")
def npu_iou(bboxes: torch.Tensor, gtboxes: torch.Tensor, mode: int = 0) -> torch.Tensor:
    """Intersection over union (or over the ground truth's area) of each pair of boxes.

    The sides of the boxes, not those of the intersection, are 0.01 longer than their ends are apart; on an Ascend 950
    those of the intersection are too. Before the 950 all of it is float16 arithmetic, of sides that are times 0.2.

    Args:
        bboxes: (N, 4), xyxy.
        gtboxes: (M, 4), xyxy.
        mode: 1 for the intersection over the area of the ground truth (IoF); any other number for IoU.

    Returns:
        (M, N), of the dtype of `bboxes`.

    Raises:
        RuntimeError: another shape or dtype.
    """
    return _iou("npu_iou", bboxes, gtboxes, mode)


@operator("npu_ptiou")
def npu_ptiou(bboxes: torch.Tensor, gtboxes: torch.Tensor, mode: int = 0) -> torch.Tensor:
    """npu_iou under its other name."""
    return _iou("npu_ptiou", bboxes, gtboxes, mode)


def _iou(name: str, bboxes: torch.Tensor, gtboxes: torch.Tensor, mode: int) -> torch.Tensor:
    for tensor in (bboxes, gtboxes):
        if tensor.dim() != 2 or tensor.shape[1] != 4:
            refuse(name, f"boxes must have shape (N, 4), but got {list(tensor.shape)}")
    if on_950(bboxes):
        floating(name, bboxes=bboxes, gtboxes=gtboxes)
        return _pairwise(bboxes.float(), gtboxes.float(), mode, newest=True).to(bboxes.dtype)
    return _pairwise(bboxes.half(), gtboxes.half(), mode, newest=False).to(bboxes.dtype)


class _Pair(NamedTuple):
    """Edges of two sets of boxes, of shape (N,) or, for a cross product, (1, N) and (M, 1), in that order."""

    x1: torch.Tensor
    y1: torch.Tensor
    x2: torch.Tensor
    y2: torch.Tensor


def _edges(boxes: torch.Tensor, trans: bool) -> _Pair:
    if not trans:
        return _Pair(*boxes.unbind(0))
    x, y, half_width, half_height = boxes[0], boxes[1], boxes[2] / 2, boxes[3] / 2
    return _Pair(x - half_width, y - half_height, x + half_width, y + half_height)


def _both(boxes: torch.Tensor, truths: torch.Tensor, trans: bool, is_cross: bool) -> tuple[_Pair, _Pair]:
    first, second = _edges(boxes, trans), _edges(truths, trans)
    if is_cross:
        return _Pair(*(edge[None, :] for edge in first)), _Pair(*(edge[:, None] for edge in second))
    return first, second


def _intersection(a: _Pair, b: _Pair) -> torch.Tensor:
    width = torch.minimum(a.x2, b.x2) - torch.maximum(a.x1, b.x1)
    height = torch.minimum(a.y2, b.y2) - torch.maximum(a.y1, b.y1)
    return width.clamp(min=0) * height.clamp(min=0)


def _hull(a: _Pair, b: _Pair) -> tuple[torch.Tensor, torch.Tensor]:
    """Width and height of the smallest box around two."""
    width = torch.maximum(a.x2, b.x2) - torch.minimum(a.x1, b.x1)
    height = torch.maximum(a.y2, b.y2) - torch.minimum(a.y1, b.y1)
    return width, height


def _giou(boxes: torch.Tensor, truths: torch.Tensor) -> torch.Tensor:
    a, b = _edges(boxes, trans=True), _edges(truths, trans=True)
    overlap = _intersection(a, b)
    union = (a.x2 - a.x1) * (a.y2 - a.y1) + (b.x2 - b.x1) * (b.y2 - b.y1) - overlap + _GIOU_EPS
    width, height = _hull(a, b)
    outer = width.abs() * height.abs()
    return overlap / union - (outer - union) / outer


def _ratio(overlap: torch.Tensor, area: torch.Tensor, truth: torch.Tensor, mode: int) -> torch.Tensor:
    return overlap / (truth + _EPS if mode == 1 else area + truth - overlap + _EPS)


def _distance(a: _Pair, b: _Pair) -> torch.Tensor:
    """Squared distance of the centres, over the squared diagonal of the smallest box around both."""
    width, height = _hull(a, b)
    apart = (b.x1 + b.x2 - a.x1 - a.x2).square() + (b.y1 + b.y2 - a.y1 - a.y2).square()
    return apart / 4 / (width.square() + height.square() + _EPS)


def _diou(boxes: torch.Tensor, truths: torch.Tensor, trans: bool, is_cross: bool, mode: int) -> torch.Tensor:
    a, b = _both(boxes, truths, trans, is_cross)
    area = (a.x2 - a.x1) * (a.y2 - a.y1 + _EPS)
    truth = (b.x2 - b.x1) * (b.y2 - b.y1 + _EPS)
    return _ratio(_intersection(a, b), area, truth, mode) - _distance(a, b)


def _ciou(
    boxes: torch.Tensor, truths: torch.Tensor, trans: bool, is_cross: bool, mode: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """CIoU, and the difference of the angles whose tangents are the ratios of width and height."""
    a, b = _both(boxes, truths, trans, is_cross)
    width, height = a.x2 - a.x1, a.y2 - a.y1 + _EPS
    truth_width, truth_height = b.x2 - b.x1, b.y2 - b.y1 + _EPS
    iou = _ratio(_intersection(a, b), width * height, truth_width * truth_height, mode)
    angle = torch.atan(truth_width / truth_height) - torch.atan(width / height)
    aspect = 4 / math.pi**2 * angle.square()
    alpha = (aspect / (1 + _EPS - iou + aspect)).detach()
    return iou - _distance(a, b) - aspect * alpha, angle


def _check(name: str, boxes: torch.Tensor, truths: torch.Tensor, is_cross: bool) -> None:
    floating(name, self=boxes, gtboxes=truths)
    if boxes.shape[0] != 4 or truths.shape[0] != 4 or (not is_cross and boxes.shape != truths.shape):
        shapes = f"{list(boxes.shape)} and {list(truths.shape)}"
        refuse(name, f"boxes must have shape (4, n), the same for both unless is_cross, but got {shapes}")


def _narrow(boxes: torch.Tensor, truths: torch.Tensor) -> torch.dtype:
    """Dtype of results: float16 if one of the inputs has it, else the boxes' dtype."""
    return torch.float16 if torch.float16 in (boxes.dtype, truths.dtype) else boxes.dtype


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(compute_dtype(tensor))


def _check_giou(trans: bool, is_cross: bool, mode: int) -> None:
    if not trans or is_cross or mode != 0:
        raise RuntimeError(
            "giou backward only support trans==True, is_cross==False, mode==0('iou') current version "
            "if you need to back propagation, please ensure your parameter is correct!" + ops_error(ErrCode.PARAM)
        )


@operator("npu_giou")
def npu_giou(
    self: torch.Tensor, gtboxes: torch.Tensor, trans: bool = False, is_cross: bool = False, mode: int = 0
) -> torch.Tensor:
    """Generalised IoU of boxes one to one: IoU - (hull - union) / hull.

    Args:
        self: (4, n): centre x, centre y, width, height; float16, bfloat16 or float32.
        gtboxes: as `self`.
        trans: must be True, the card takes no other.
        is_cross: must be False.
        mode: must be 0.

    Returns:
        (n, 1); float16 if one of the inputs is.

    Raises:
        RuntimeError: any other argument, shape or dtype.
    """
    _check_giou(trans, is_cross, mode)
    if self.dim() < 2 or gtboxes.dim() < 2:
        raise RuntimeError("giou input dim must be >= 2" + ops_error(ErrCode.PARAM))
    _check("npu_giou", self, gtboxes, is_cross)
    return _giou(_wide(self), _wide(gtboxes))[:, None].to(_narrow(self, gtboxes))


@operator("npu_giou_backward")
def npu_giou_backward(
    grad: torch.Tensor,
    bboxes: torch.Tensor,
    gtboxes: torch.Tensor,
    trans: bool = False,
    is_cross: bool = False,
    mode: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of npu_giou.

    Args:
        grad: n elements.
        bboxes: as `self` of npu_giou; the others too.
        gtboxes: see `bboxes`.
        trans: see `bboxes`.
        is_cross: see `bboxes`.
        mode: see `bboxes`.

    Returns:
        those of `bboxes` and `gtboxes`.

    Raises:
        RuntimeError: as npu_giou.
    """
    _check_giou(trans, is_cross, mode)
    _check("npu_giou_backward", bboxes, gtboxes, is_cross)
    flat = _wide(grad).reshape(bboxes.shape[1])
    found = gradients(_giou, flat, _wide(bboxes), _wide(gtboxes))
    return found[0].to(_narrow(bboxes, gtboxes)), found[1].to(_narrow(gtboxes, bboxes))


def _two_dimensional(boxes: torch.Tensor, truths: torch.Tensor) -> None:
    for name, tensor in (("self", boxes), ("gtboxes", truths)):
        if tensor.dim() != 2:
            text = f"{name} has to be a 2D Tensor, but got Tensor of dimension {tensor.dim()}"
            raise RuntimeError(text + ops_error(ErrCode.PARAM))


@operator("npu_diou")
def npu_diou(
    self: torch.Tensor, gtboxes: torch.Tensor, trans: bool = False, is_cross: bool = False, mode: int = 0
) -> torch.Tensor:
    """Distance IoU: IoU less the squared distance of the centres over the squared diagonal of the hull.

    Args:
        self: (4, n): centre x, centre y, width, height if `trans`, else x1, y1, x2, y2; float16, bfloat16 or float32.
        gtboxes: (4, m), alike.
        trans: how the boxes are given.
        is_cross: each pair rather than one to one.
        mode: 1 for the intersection over the area of the ground truth in place of IoU.

    Returns:
        (1, n), or (m, n) if `is_cross`; float16 if one of the inputs is.

    Raises:
        RuntimeError: another shape or dtype.
    """
    _two_dimensional(self, gtboxes)
    _check("npu_diou", self, gtboxes, is_cross)
    found = _diou(_wide(self), _wide(gtboxes), trans, is_cross, mode)
    return (found if is_cross else found[None]).to(_narrow(self, gtboxes))


@operator("npu_diou_backward")
def npu_diou_backward(
    grad: torch.Tensor,
    bboxes: torch.Tensor,
    gtboxes: torch.Tensor,
    trans: bool = False,
    is_cross: bool = False,
    mode: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of npu_diou.

    Args:
        grad: of the shape of its result.
        bboxes: as `self` of npu_diou; the others too.
        gtboxes: see `bboxes`.
        trans: see `bboxes`.
        is_cross: see `bboxes`.
        mode: see `bboxes`.

    Returns:
        those of `bboxes` and `gtboxes`.

    Raises:
        RuntimeError: another shape or dtype.
    """
    _two_dimensional(bboxes, gtboxes)
    _check("npu_diou_backward", bboxes, gtboxes, is_cross)
    flat = _wide(grad) if is_cross else _wide(grad).reshape(bboxes.shape[1])
    found = gradients(lambda a, b: _diou(a, b, trans, is_cross, mode), flat, _wide(bboxes), _wide(gtboxes))
    return found[0].to(_narrow(bboxes, gtboxes)), found[1].to(_narrow(gtboxes, bboxes))


def _check_ciou(name: str, boxes: torch.Tensor, truths: torch.Tensor, is_cross: bool) -> None:
    for which, tensor in (("self", boxes), ("gtboxes", truths)):
        if tensor.dim() != 2:
            text = f"ciou expected input in 2D, but input {which} has sizes {tensor.dim()}"
            raise RuntimeError(text + ops_error(ErrCode.PARAM))
    _check(name, boxes, truths, is_cross)
    if on_950(boxes):
        if is_cross:
            refuse(name, "is_cross is True; the Ascend 950 takes only False")
        if boxes.shape[1] % 1024:
            refuse(name, f"{boxes.shape[1]} boxes; the Ascend 950 takes multiples of 1024")


@operator("_npu_ciou")
def _npu_ciou(
    self: torch.Tensor,
    gtboxes: torch.Tensor,
    trans: bool = False,
    is_cross: bool = True,
    mode: int = 0,
    atan_sub_flag: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Complete IoU: DIoU less alpha * v, where v = 4 / pi^2 * (atan(gw / gh) - atan(w / h))^2.

    alpha is v / (1 - IoU + v), and constant for the gradient.

    Args:
        self: (4, n): centre x, centre y, width, height if `trans`, else x1, y1, x2, y2; float16, bfloat16 or float32.
        gtboxes: (4, m), alike.
        trans: how the boxes are given.
        is_cross: each pair rather than one to one.
        mode: 1 for the intersection over the area of the ground truth in place of IoU.
        atan_sub_flag: asks a card for the second result, which is computed here in any case.

    Returns:
        CIoU, (1, n) or (m, n) if `is_cross`, float16 if one of the inputs is; and the difference of the two angles of
        the same shape, in float32 before the Ascend 950, without a gradient.

    Raises:
        RuntimeError: another shape or dtype; on an Ascend 950 also `is_cross`, or n that is no multiple of 1024.
    """
    _check_ciou("npu_ciou", self, gtboxes, is_cross)
    found, angle = _ciou(_wide(self), _wide(gtboxes), trans, is_cross, mode)
    if not is_cross:
        found, angle = found[None], angle[None]
    narrow = _narrow(self, gtboxes)
    return found.to(narrow), (angle.to(narrow) if on_950(self) else angle).detach()


@operator("npu_ciou", composite=True)
def npu_ciou(
    self: torch.Tensor,
    gtboxes: torch.Tensor,
    trans: bool = False,
    is_cross: bool = True,
    mode: int = 0,
    atan_sub_flag: bool = False,
) -> torch.Tensor:
    """The first result of _npu_ciou, with its gradient.

    Args:
        self: see _npu_ciou; the others too.
        gtboxes: see `self`.
        trans: see `self`.
        is_cross: see `self`.
        mode: see `self`.
        atan_sub_flag: see `self`.

    Returns:
        CIoU.

    Raises:
        RuntimeError: as _npu_ciou.
    """
    return _npu_ciou(self, gtboxes, trans, is_cross, mode, atan_sub_flag)[0]


@operator("npu_ciou_backward")
def npu_ciou_backward(
    grad: torch.Tensor,
    bboxes: torch.Tensor,
    gtboxes: torch.Tensor,
    atan_sub: torch.Tensor | None,
    trans: bool = False,
    is_cross: bool = True,
    mode: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of _npu_ciou.

    Args:
        grad: of the shape of its first result.
        bboxes: as `self` of _npu_ciou; the others too.
        gtboxes: see `bboxes`.
        atan_sub: its second result; computed again here.
        trans: see `bboxes`.
        is_cross: see `bboxes`.
        mode: see `bboxes`.

    Returns:
        those of `bboxes` and `gtboxes`.

    Raises:
        RuntimeError: as _npu_ciou; always on an Ascend 950.
    """
    if on_950(bboxes):
        text = "npu_ciou_backward is not supported on Ascend950 and above"
        raise RuntimeError(text + ops_error(ErrCode.NOT_SUPPORT))
    _check_ciou("npu_ciou_backward", bboxes, gtboxes, is_cross)
    flat = _wide(grad) if is_cross else _wide(grad).reshape(bboxes.shape[1])
    found = gradients(lambda a, b: _ciou(a, b, trans, is_cross, mode)[0], flat, _wide(bboxes), _wide(gtboxes))
    return found[0].to(_narrow(bboxes, gtboxes)), found[1].to(_narrow(gtboxes, bboxes))

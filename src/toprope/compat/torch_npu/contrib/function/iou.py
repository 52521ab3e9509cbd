"""Overlap measures of boxes. Each warns that torch_npu's operator of the same name replaces it, as torch_npu does.

Programs import its names from `torch_npu.contrib.function`. Signatures, errors and warnings are those of
torch_npu/contrib/function/iou.py of Ascend/pytorch. Tests: tests/compat/operators/test_vision_tensors.py; the
operators' values are held by tests/compat/operators/test_vision_boxes.py.
"""

from __future__ import annotations

import warnings

import torch

from ..._error_codes import ErrCode, ops_error

__all__: list[str] = []


def _deprecated(name: str, instead: str) -> None:
    text = f"torch_npu.contrib.{name} is deprecated. Please use {instead} as a replacement."
    warnings.warn(text, FutureWarning, stacklevel=3)


def npu_iou(
    boxes1: torch.Tensor,
    boxes2: torch.Tensor,
    mode: str = "ptiou",
    is_normalized: bool = False,
    normalized_scale: float = 100.0,
) -> torch.Tensor:
    """Intersection over union of each pair of boxes: npu_iou with the arguments exchanged.

    Args:
        boxes1: (N, 4), xyxy; converted to float32.
        boxes2: (M, 4), alike.
        mode: "iou" or "ptiou", which give the same.
        is_normalized: the coordinates are fractions, and are multiplied by `normalized_scale` first.
        normalized_scale: see `is_normalized`.

    Returns:
        (N, M).

    Raises:
        ValueError: another mode.
    """
    _deprecated("npu_iou", "torch_npu.npu_iou or torch_npu.npu_ptiou")
    if mode not in ("iou", "ptiou"):
        raise ValueError("Expected mode in [iou, ptiou]" + ops_error(ErrCode.VALUE))
    first, second = boxes1.float(), boxes2.float()
    if is_normalized:
        first, second = first * normalized_scale, second * normalized_scale
    found: torch.Tensor = (torch.ops.npu.npu_iou if mode == "iou" else torch.ops.npu.npu_ptiou)(second, first)
    return found


npu_ptiou = npu_iou


def npu_giou(boxes1: torch.Tensor, boxes2: torch.Tensor, is_permuted: bool = True) -> torch.Tensor:
    """Generalised IoU of boxes one to one.

    Args:
        boxes1: (n, 4): centre x, centre y, width, height; converted to float32. (4, n) without `is_permuted`.
        boxes2: alike.
        is_permuted: see `boxes1`.

    Returns:
        (n, 1).

    Raises:
        ValueError: boxes of two shapes.
    """
    _deprecated("npu_giou", "torch_npu.npu_giou")
    if boxes1.shape != boxes2.shape:
        raise ValueError("Expected boxes1.shape == boxes2.shape" + ops_error(ErrCode.VALUE))
    first, second = boxes1.float(), boxes2.float()
    if is_permuted:
        first, second = first.permute(1, 0), second.permute(1, 0)
    found: torch.Tensor = torch.ops.npu.npu_giou(first, second, trans=True, is_cross=False)
    return found


def npu_diou(
    boxes1: torch.Tensor, boxes2: torch.Tensor, trans: bool = True, is_cross: bool = False, mode: int = 0
) -> torch.Tensor:
    """Distance IoU: the operator npu_diou, with its arguments.

    Args:
        boxes1: (4, n).
        boxes2: (4, n).
        trans: centre x, centre y, width, height rather than corners.
        is_cross: each pair rather than one to one.
        mode: 0 for IoU, 1 for IoF.

    Returns:
        (1, n).
    """
    _deprecated("function.npu_diou", "torch_npu.npu_diou")
    found: torch.Tensor = torch.ops.npu.npu_diou(boxes1, boxes2, trans, is_cross, mode)
    return found


def npu_ciou(
    boxes1: torch.Tensor, boxes2: torch.Tensor, trans: bool = True, is_cross: bool = False, mode: int = 0
) -> torch.Tensor:
    """Complete IoU: the operator npu_ciou, with its arguments.

    Args:
        boxes1: (4, n).
        boxes2: (4, n).
        trans: centre x, centre y, width, height rather than corners.
        is_cross: each pair rather than one to one.
        mode: 0 for IoU, 1 for IoF.

    Returns:
        (1, n).
    """
    _deprecated("function.npu_ciou", "torch_npu.npu_ciou")
    found: torch.Tensor = torch.ops.npu.npu_ciou(boxes1, boxes2, trans, is_cross, mode, True)
    return found

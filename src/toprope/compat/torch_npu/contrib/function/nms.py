"""Non-maximum suppression over many classes: npu_batch_nms for the results of a detector.

Programs import its names from `torch_npu.contrib.function`. Signature and errors are those of
torch_npu/contrib/function/nms.py of Ascend/pytorch; tests/compat/operators/test_vision_tensors.py holds the values.
"""

from __future__ import annotations

import torch

__all__ = ["npu_batched_multiclass_nms", "npu_multiclass_nms"]


def npu_multiclass_nms(
    multi_bboxes: torch.Tensor,
    multi_scores: torch.Tensor,
    score_thr: float = 0.05,
    nms_thr: float = 0.45,
    max_num: int = 50,
    score_factors: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Non-maximum suppression for each class of one image.

    Args:
        multi_bboxes: (n, classes * 4) or (n, 4), xyxy; converted to float16.
        multi_scores: (n, classes + 1), of which the last column, the background, does not count.
        score_thr: boxes whose score is not greater go.
        nms_thr: boxes whose IoU with a better one of the class is greater go.
        max_num: number of results, 0 after the last.
        score_factors: (n,), multiplied with the scores first.

    Returns:
        boxes with scores (max_num, 5), and classes (max_num,); float16.
    """
    factors = None if score_factors is None else score_factors[None]
    boxes, labels = npu_batched_multiclass_nms(
        multi_bboxes[None], multi_scores[None], score_thr, nms_thr, max_num, factors
    )
    return boxes[0], labels[0]


def npu_batched_multiclass_nms(
    multi_bboxes: torch.Tensor,
    multi_scores: torch.Tensor,
    score_thr: float = 0.05,
    nms_thr: float = 0.45,
    max_num: int = 50,
    score_factors: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Non-maximum suppression for each class of each image.

    Args:
        multi_bboxes: (images, n, classes * 4) or (images, n, 4), xyxy; converted to float16.
        multi_scores: (images, n, classes + 1), of which the last column, the background, does not count.
        score_thr: boxes whose score is not greater go.
        nms_thr: boxes whose IoU with a better one of the class is greater go.
        max_num: number of results for each image, 0 after the last.
        score_factors: (images, n), multiplied with the scores first.

    Returns:
        boxes with scores (images, max_num, 5), and classes (images, max_num); float16.
    """
    images, count = multi_scores.shape[:2]
    scores = multi_scores[..., :-1]
    if score_factors is not None:
        scores = scores * score_factors[..., None]
    boxes = multi_bboxes.reshape(images, count, multi_bboxes.numel() // 4 // count // images, 4)
    kept, best, labels, _ = torch.ops.npu.npu_batch_nms(
        boxes.half(), scores.half(), score_thr, nms_thr, max_num, max_num
    )
    return torch.cat([kept, best[..., None]], -1), labels

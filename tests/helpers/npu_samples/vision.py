"""Sample calls of operators for boxes, regions, convolutions and tensor layout.

tests/sim/simulated/test_npu_operators.py calls them on the card, the CPU and fake tensors.
"""

import torch

from . import Sample


def samples() -> dict[str, Sample]:
    """One call of each operator of the modules about boxes, pooling, convolutions, layouts and values."""
    return {**boxes(), **pooling(), **convolutions(), **layouts(), **values()}


def corners(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    low = torch.rand(count, 2) * 20
    return torch.cat([low, low + 1 + torch.rand(count, 2) * 10], 1).to(dtype)


def boxes() -> dict[str, Sample]:
    first, second, scores = corners(6), corners(6), torch.rand(6)
    coding = (0.0, 0.0, 0.0, 0.0, 0.1, 0.1, 0.2, 0.2)
    rotated = torch.rand(2, 5, 3) * 10 + torch.tensor([0.0, 0.0, 20.0, 20.0, 0.0])[:, None]
    centred = torch.cat([torch.rand(2, 3, 2) * 8, 2 + torch.rand(2, 3, 2) * 6, torch.rand(2, 3, 1) * 90], 2)
    columns = torch.rand(4, 6) + 1
    apart = torch.tensor([[1.0, 1.0, 2.0, 2.0, 10.0], [9.0, 9.0, 2.0, 3.0, 40.0], [20.0, 5.0, 4.0, 1.0, 0.0]])
    grid = (
        torch.zeros(4), torch.rand(2, 4), torch.tensor([1, 1, 1, 0], dtype=torch.uint8), torch.rand(4),
        torch.tensor([1, 0, 1, 0], dtype=torch.int32), torch.rand(2), torch.tensor([1, 0], dtype=torch.int32),
        2, 0.5, 0.0, True,
    )  # fmt: skip
    one_to_one = {"trans": True, "is_cross": False}
    return {
        "npu_bounding_box_encode": ((first, second, *coding), {}),
        "npu_bounding_box_decode": ((first, torch.rand(6, 4), *coding, [30, 40], 0.016), {}),
        "npu_rotated_box_encode": ((rotated, rotated.flip(0), torch.ones(5)), {}),
        "npu_rotated_box_decode": ((rotated, torch.rand(2, 5, 3), torch.ones(5)), {}),
        "npu_yolo_boxes_encode": ((first, second, torch.full((6,), 8, dtype=torch.int32)), {}),
        "npu_anchor_response_flags": ((first, [6, 5], [4, 4], 3), {}),
        "npu_grid_assign_positive": (grid, {}),
        "npu_iou": ((first.half(), second[:4].half()), {}),
        "npu_ptiou": ((first, second[:4], 1), {}),
        "npu_giou": ((columns, columns.flip(1)), {"trans": True}),
        "npu_giou_backward": ((torch.rand(6, 1), columns, columns.flip(1)), {"trans": True}),
        "npu_diou": ((columns, columns.flip(1)), {"trans": True}),
        "npu_diou_backward": ((torch.rand(1, 6), columns, columns.flip(1)), {"trans": True}),
        "_npu_ciou": ((columns, columns.flip(1)), one_to_one),
        "npu_ciou": ((columns, columns.flip(1)), one_to_one),
        "npu_ciou_backward": ((torch.rand(1, 6), columns, columns.flip(1), torch.rand(1, 6)), one_to_one),
        "npu_rotated_iou": ((centred, centred.flip(1)), {}),
        "npu_rotated_overlaps": ((centred, centred.flip(1)), {}),
        "npu_nms_rotated": ((apart, scores[:3], 0.5), {}),
        "npu_batch_nms": ((corners(12).half().reshape(2, 6, 1, 4), torch.rand(2, 6, 3).half(), 0.3, 0.5, 4, 8), {}),
        "npu_nms_v4": ((first, scores, 4, torch.tensor(0.5), torch.tensor(0.1)), {}),
        "npu_nms_with_mask": ((torch.cat([first, scores[:, None]], 1), 0.5), {}),
        "npu_random_choice_with_mask": ((torch.rand(3, 4) > 0.5, 16), {}),
        "npu_sub_sample": ((torch.tensor([1, 0, -1, 1, 0], dtype=torch.int32), 4, 0.5), {}),
    }  # fmt: skip


def pooling() -> dict[str, Sample]:
    x, rois = torch.randn(2, 3, 8, 8), torch.tensor([[0.0, 1.0, 2.0, 12.0, 13.0], [1.0, 0.0, 0.0, 6.0, 6.0]])
    sensitive, regions = torch.randn(2, 8, 8, 8), rois.t().repeat(2, 1, 1)
    return {
        "npu_roi_align": ((x, rois, 0.5, 2, 3, 2, 0), {}),
        "npu_roi_alignbk": ((torch.randn(2, 3, 2, 3), rois, x.shape, 3, 2, 0.5, 2), {}),
        "npu_ps_roi_pooling": ((sensitive, regions, 0.5, 2, 2), {}),
        "npu_ps_roi_pooling_backward": ((torch.randn(4, 2, 2, 2), regions, 0.5, 2, 2, [8, 8]), {}),
    }


def convolutions() -> dict[str, Sample]:
    x, weight, bias = torch.randn(2, 4, 6, 6), torch.randn(6, 2, 3, 3), torch.randn(6)
    deep, kernel = torch.randn(1, 2, 4, 4, 4), torch.randn(3, 2, 2, 2, 2)
    back = torch.randn(4, 3, 3, 3)
    plane, space = ([1, 1], [1, 1], [1, 1], 2), ([1, 1, 1], [0, 0, 0], [1, 1, 1], 1)
    turned = ([1, 1], [0, 0], [2, 2], [1, 1], 2)
    offset, square = torch.randn(2, 27, 6, 6), torch.randn(6, 4, 3, 3)
    deformed = ([3, 3], [1, 1, 1, 1], [1, 1, 1, 1])
    samples = torch.randn(2, 4, 18, 18)
    every = [True, True, True]
    volume = torch.randn(2, 3, 2, 2, 2)
    turned_3d = ([0, 0, 0], [0, 0, 0], [1, 1, 1], [1, 1, 1], 1)
    return {
        "npu_conv2d": ((x, weight, bias, *plane), {}),
        "npu_conv2d.out": ((x, weight, bias, *plane), {"out": torch.empty(2, 6, 6, 6)}),
        "npu_conv2d_backward": ((x, torch.randn(2, 6, 6, 6), weight, *plane, every), {}),
        "npu_conv3d": ((deep, kernel, None, *space), {}),
        "npu_conv3d.out": ((deep, kernel, None, *space), {"out": torch.empty(1, 3, 3, 3, 3)}),
        "npu_conv3d_backward": ((deep, torch.randn(1, 3, 3, 3, 3), kernel, *space, every), {}),
        "npu_conv_transpose2d": ((x, back, bias, *turned), {}),
        "npu_conv_transpose2d_backward": ((x, torch.randn(2, 6, 11, 11), back, *turned, every), {}),
        "npu_conv_transpose3d_backward": ((deep, torch.randn(1, 3, 5, 5, 5), volume, *turned_3d, every), {}),
        "npu_convolution": ((x, weight, bias, *plane), {}),
        "npu_convolution_backward": ((x, torch.randn(2, 6, 6, 6), weight, *plane, every), {}),
        "npu_convolution_transpose": ((x, back, bias, *turned), {}),
        "npu_convolution_transpose_backward": ((x, torch.randn(2, 6, 11, 11), back, *turned, every), {}),
        "npu_deformable_conv2d": ((x, square, offset, bias, *deformed), {}),
        "npu_deformable_conv2dbk": ((x, torch.randn(2, 6, 6, 6), samples, square, offset, *deformed), {}),
    }


def layouts() -> dict[str, Sample]:
    x = torch.randn(3, 4, 6)
    part, turned = torch.empty(2, 2, 3), torch.empty(6, 3, 4)
    return {
        "npu_slice": ((x, [1, 0, 2], [2, 2, 3]), {}),
        "npu_slice.out": ((x, [1, 0, 2], [2, 2, 3]), {"out": part.clone()}),
        "npu_indexing": ((x, [0, 1, 0], [2, 3, 6], [1, 1, 2]), {}),
        "npu_indexing.out": ((x, [0, 1, 0], [2, 3, 6], [1, 1, 2]), {"out": part.clone()}),
        "npu_pad": ((x, [1, 0, 2, 1]), {}),
        "npu_transpose": ((x, [2, 0, 1]), {}),
        "npu_transpose.out": ((x, [2, 0, 1]), {"out": turned.clone()}),
        "npu_broadcast": ((x[:, :1], [2, 3, 4, 6]), {}),
        "npu_broadcast.out": ((x[:, :1], [3, 4, 6]), {"out": torch.empty(3, 4, 6)}),
        "npu_reshape": ((x, [12, 6]), {}),
        "npu_reshape.out": ((x, [12, 6]), {"out": torch.empty(12, 6)}),
        "npu_confusion_transpose": ((x, [0, 2, 1, 3], [3, 2, 2, 6], False), {}),
        "npu_confusion_transpose_backward": ((torch.randn(3, 2, 2, 6), [0, 2, 1, 3], [3, 4, 6], True), {}),
        "npu_stride_copy": ((x, [2, 3], [6, 2], 1), {}),
        "npu_stride_copy.out": ((x, [2, 3], [6, 2], 1), {"out": torch.empty(2, 3)}),
        "npu_stride_add": ((torch.randn(2, 32, 3, 3), torch.randn(2, 20, 3, 3), 1, 0, 1), {}),
    }


def values() -> dict[str, Sample]:
    x, rows = torch.randn(3, 4, 5), torch.randint(0, 4, (3, 5), dtype=torch.int32)
    ranges = torch.tensor([[0, 1, 2]], dtype=torch.int32)
    return {
        "npu_max.dim": ((x, 1), {}),
        "npu_min.dim": ((x, 1, True), {}),
        "npu_max_backward": ((torch.randn(3, 5), 1, rows, [3, 4, 5], False), {}),
        "npu_min_backward": ((torch.randn(3, 1, 5), 1, rows[:, None], [3, 4, 5], True), {}),
        "npu_scatter": ((x, rows, torch.randn(3, 5), 1), {}),
        "npu_sort_v2": ((x.half(),), {"descending": True}),
        "npu_sort_v2.out": ((x.half(), 1), {"out": torch.empty(3, 4, 5, dtype=torch.float16)}),
        "npu_one_hot": ((rows,), {"depth": 4}),
        "npu_masked_fill_range": ((x, ranges, ranges + 2, torch.tensor([9.0])), {}),
        "npu_normalize_batch": ((x, torch.tensor([2, 5, 3], dtype=torch.int32)), {}),
        "npu_sign_bits_pack": ((torch.randn(30).half(), 2), {}),
        "npu_sign_bits_unpack": ((torch.tensor([159, 15], dtype=torch.uint8), 2, torch.float16), {}),
        "npu_gather_backward": ((torch.randn(3, 2, 5), [3, 4, 5], 1, torch.randint(0, 4, (3, 2, 5)), False), {}),
        "npu_gather_sparse_index": ((x, torch.tensor([[0, 2], [1, 1]])), {}),
        "npu_gather_sparse_index_backward": ((torch.randn(2, 4, 5), [3, 4, 5], torch.tensor([0, 2])), {}),
    }

"""Sample calls of matrix products, with dtypes that the 910B takes.

tests/sim/simulated/test_npu_operators.py calls them on the card, the CPU and fake tensors.
"""

import torch

from . import Sample

GROUPS = torch.tensor([2, 2, 5])


def int8(*shape: int) -> torch.Tensor:
    return torch.randint(-20, 20, shape, dtype=torch.int8)


def packed(scale: torch.Tensor) -> torch.Tensor:
    """A float32 scale as npu_trans_quant_param packs it."""
    return scale.view(torch.int32).to(torch.int64) & 0xFFFFFFFF


def floating() -> dict[str, Sample]:
    a, b = torch.randn(4, 16, dtype=torch.float16), torch.randn(8, 16, dtype=torch.float16)
    batch = torch.randn(2, 4, 16, dtype=torch.float16), torch.randn(2, 16, 8, dtype=torch.float16)
    grad = torch.randn(2, 4, 8, dtype=torch.float16)
    return {
        "npu_linear": ((a, b, torch.randn(8, dtype=torch.float16)), {}),
        "npu_linear_backward": ((torch.randn(4, 8, dtype=torch.float16), a, b), {}),
        "npu_bmmV2": ((*batch, []), {}),
        "npu_bmm_v2_mat1_backward": ((grad, *batch, [2, 4, 16]), {}),
        "npu_bmm_v2_mat2_backward": ((grad, *batch, [2, 16, 8]), {}),
        "npu_transpose_batchmatmul": (batch, {"batch_split_factor": 2}),
        "_npu_matmul_add_fp32": ((a, b[:4], torch.randn(16, 16)), {}),
        "npu_ffn": ((a, torch.randn(16, 32).half(), torch.randn(32, 16).half(), "fastgelu"), {}),
    }


def grouped() -> dict[str, Sample]:
    x, weight = torch.randn(6, 16, dtype=torch.bfloat16), torch.randn(3, 16, 8, dtype=torch.bfloat16)
    bias, result = torch.randn(3, 8), torch.randn(3 * 16, 8)
    add = (result, x, torch.randn(6, 8, dtype=torch.bfloat16), GROUPS)
    quantised = (int8(6, 32), int8(3, 32, 16), GROUPS, torch.rand(3, 16), torch.rand(6))
    lists = (quantised[0], [quantised[1]], [quantised[3]], quantised[4], GROUPS)
    routing = {
        "scale": torch.rand(3, 16),
        "pertoken_scale": torch.rand(6),
        "logit": torch.rand(6),
        "row_index": torch.tensor([0, 1, 2, 0, 1, 2]),
        "shared_input": torch.randn(2, 16, dtype=torch.bfloat16),
        "shared_input_offset": 1,
        "output_bs": 3,
        "group_list_type": 0,
    }
    kept = {"group_list": GROUPS, "group_type": 0, "split_item": 3}
    return {
        "npu_grouped_matmul": (([x], [weight]), {"bias": [bias], **kept}),
        "npu_grouped_matmul.List": (([x], list(weight)), {"group_list": [2, 2, 6], "split_item": 1}),
        "npu_grouped_matmul_add": (add, {}),
        "npu_grouped_matmul_add_": (add, {}),
        "npu_grouped_matmul_swiglu_quant": (quantised, {}),
        "npu_grouped_matmul_swiglu_quant_v2": (lists, {}),
        "npu_grouped_matmul_finalize_routing": (quantised[:3], routing),
    }


def quantised() -> dict[str, Sample]:
    x1, x2 = int8(4, 32), int8(32, 16)
    scale, rows = torch.rand(16), torch.rand(4)
    half = torch.randn(4, 32, dtype=torch.float16)
    return {
        "npu_quant_matmul": ((x1, x2, packed(scale)), {"bias": torch.randint(-9, 9, (16,), dtype=torch.int32)}),
        "npu_quant_matmul_gelu": ((x1, x2, rows, scale), {}),
        "npu_weight_quant_batchmatmul": ((half, x2, scale.half(), scale.half()), {}),
    }


def losses() -> dict[str, Sample]:
    logits, target = torch.randn(6, 9), torch.randint(0, 9, (6,))
    hidden, weight = torch.randn(6, 16, dtype=torch.float16), torch.randn(9, 16, dtype=torch.float16)
    largest, total, predicted = torch.randn(6), torch.rand(6) + 1, torch.randn(6)
    mask = torch.tensor([0b101001], dtype=torch.uint8)
    backward = {"logits_max": largest, "sum_exp_logits": total}
    return {
        "npu_cross_entropy_loss": ((logits, target), {}),
        "npu_cross_entropy_loss_backward": ((torch.ones(1), logits.log_softmax(-1), target), {}),
        "npu_fused_linear_online_max_sum": ((hidden, weight, target, 2, 7, True), {}),
        "npu_fused_cross_entropy_loss_with_max_sum": (
            (largest, total, predicted),
            {"vocab_parallel_logits": logits},
        ),
        "npu_fused_linear_cross_entropy_loss_with_max_sum_backward": (
            (torch.rand(6), hidden, weight, mask, target),
            backward,
        ),
    }


def samples() -> dict[str, Sample]:
    return floating() | grouped() | quantised() | losses()

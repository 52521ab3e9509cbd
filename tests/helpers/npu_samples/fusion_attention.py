"""Sample calls of npu_fusion_attention and its gradient.

tests/sim/simulated/test_npu_operators.py calls them on the card, the CPU and fake tensors.
"""

import torch

from . import Sample


def samples() -> dict[str, Sample]:
    query = torch.randn(2, 3, 8, 16, dtype=torch.float16)
    statistic, sink = torch.rand(2, 3, 8, 8) + 1, torch.randn(3)
    call, scale = (query, query, query, 3, "BNSD"), {"scale": 0.25}
    saved = {"softmax_max": statistic, "softmax_sum": statistic * 8, "attention_in": query, "scale_value": 0.25}
    numbers = torch.zeros(1, dtype=torch.int64)
    flat = torch.randn(5, 3, 16, dtype=torch.float16)
    ends = {"actual_seq_qlen": [2, 5], "actual_seq_kvlen": [2, 5]}
    rows = torch.rand(5, 3, 8) + 1
    saved_rows = {"softmax_max": rows, "softmax_sum": rows * 8, "attention_in": flat, "scale_value": 0.25}
    outs = [query.clone(), statistic.clone(), statistic.clone(), query.new_empty(0), numbers.clone(), numbers.clone()]
    grads = [query.clone(), query.clone(), query.clone(), query.new_empty(0), torch.zeros(3)]
    backward = (query, query, query, query, 3, "BNSD")
    return {
        "npu_fusion_attention": (call, {**scale, "sink": sink}),
        "npu_fusion_attention_v2": (
            (flat, flat, flat, 3, "TND"),
            {**scale, **ends, "query_rope": flat, "key_rope": flat},
        ),
        "npu_fusion_attention_v3.out": (call, {**scale, "out": outs}),
        "_npu_fusion_attention_v3_infer_output": (call, {}),
        "npu_fusion_attention_grad": (backward, {**saved, "sink": sink}),
        "npu_fusion_attention_grad_v2": (
            (flat, flat, flat, flat, 3, "TND"),
            {**saved_rows, **ends, "query_rope": flat, "key_rope": flat},
        ),
        "npu_fusion_attention_grad_v3": (backward, {**saved, "sink": sink}),
        "npu_fusion_attention_grad_v3.out": (backward, {**saved, "sink": sink, "out": grads}),
        "_npu_fusion_attention_grad_v3_infer_output": ((query, query, query), {"sink": sink}),
    }

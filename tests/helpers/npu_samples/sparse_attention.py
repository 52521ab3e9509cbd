"""Sample calls of sparse attention and its indexer.

tests/sim/simulated/test_npu_operators.py calls them on the card, the CPU and fake tensors.
"""

import torch

from . import Sample


def samples() -> dict[str, Sample]:
    return sparse_flash() | indexer() | nsa() | blocks()


def half(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float16) * 0.1


def numbers(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def sparse_flash() -> dict[str, Sample]:
    query, key = half(5, 2, 512), half(9, 1, 512)
    rope = {"query_rope": half(5, 2, 64), "key_rope": half(9, 1, 64)}
    index = torch.tensor([[[0, 1]], [[1, -1]], [[2, 0]], [[3, 1]], [[0, -1]]], dtype=torch.int32)
    lengths = {"actual_seq_lengths_query": numbers(2, 5), "actual_seq_lengths_kv": numbers(4, 9)}
    layouts = {"layout_query": "TND", "layout_kv": "TND", "attention_mode": 2}
    statistic = torch.rand(1, 5, 2) + 1
    packed = torch.randint(-8, 8, (9, 1, 656), dtype=torch.int8)
    packed[..., 512:640] = half(9, 1, 64).view(torch.int8)
    packed[..., 640:] = torch.rand(9, 1, 4).view(torch.int8)
    return {
        "npu_sparse_flash_attention": (
            (query, key, key, index, 0.3),
            {**rope, **lengths, **layouts, "return_softmax_lse": True},
        ),
        "npu_sparse_flash_attention_grad": (
            (query, key, key, index, query, query, statistic, statistic, 0.3, 1),
            {**rope, "actual_seq_qlen": numbers(2, 5), "actual_seq_kvlen": numbers(4, 9), "layout": "TND"},
        ),
        "npu_kv_quant_sparse_flash_attention": (
            (torch.cat((query, rope["query_rope"]), -1), packed, packed, index, 0.3, 2, 2),
            {**lengths, **layouts},
        ),
    }


def indexer() -> dict[str, Sample]:
    query, key, weights = half(2, 3, 8, 128), half(2, 6, 1, 128), half(2, 3, 8)
    index = torch.tensor([[[[0, 1]], [[1, 2]], [[5, -1]]]] * 2, dtype=torch.int32)
    main = (half(2, 3, 4, 16), half(2, 6, 2, 16), query, key, weights)
    statistic, own = torch.rand(2, 2, 3, 2) + 1, torch.rand(2, 1, 3) + 1
    codes = [torch.randint(-99, 99, shape, dtype=torch.int8) for shape in ((2, 3, 8, 128), (2, 6, 1, 128))]
    scales = half(2, 3, 8).abs(), half(2, 6, 1).abs()
    return {
        "npu_lightning_indexer": ((query, key, weights), {"sparse_count": 4, "return_value": True}),
        "npu_lightning_indexer_grad": ((query, key, half(2, 3, 1, 2), index, weights), {}),
        "npu_sparse_lightning_indexer_grad_kl_loss": ((*main, index, statistic, statistic, 0.5), {}),
        "npu_dense_lightning_indexer_grad_kl_loss": ((*main, statistic, statistic, own, own, 0.5), {}),
        "npu_dense_lightning_indexer_softmax_lse": ((query, key, weights), {}),
        "npu_quant_lightning_indexer": ((*codes, weights, *scales, 0, 0), {"sparse_count": 4}),
    }


def nsa() -> dict[str, Sample]:
    rows, weight = half(40, 2, 16), half(32, 2)
    query, key, value = half(3, 4, 192), half(64, 2, 192), half(64, 2, 128)
    index = torch.tensor([[[0, 1], [2, 3]]] * 3, dtype=torch.int32)
    statistic = torch.rand(3, 4, 8) + 1
    ends = {"actual_seq_qlen": [3], "actual_seq_kvlen": [64]}
    select = (0.3, 4, 16, 2)
    compressed = (half(3, 4, 16), half(9, 2, 16), half(9, 2, 16), 0.5, 4, 32, 16, 32, 2)
    lengths = {"actual_seq_qlen": [3], "actual_cmp_seq_kvlen": [9], "actual_sel_seq_kvlen": [5]}
    cache = half(4, 16, 32), half(4, 16, 32)
    table = torch.tensor([[0, 1], [2, 3]], dtype=torch.int32)
    paged = half(4, 16, 2 * 192), half(4, 16, 2 * 128)
    return {
        "npu_nsa_compress": ((rows, weight, 32, 16), {"actual_seq_len": [40]}),
        "npu_nsa_compress_grad": ((half(1, 2, 16), rows, weight, 32, 16), {"actual_seq_len": [40]}),
        "npu_nsa_compress_infer.cache": (
            (half(4, 16, 2, 16), weight, numbers(1, 0), 32, 16, 16),
            {"block_table": table, "actual_seq_len": [32, 30], "cache": half(2, 2, 16)},
        ),
        "npu_nsa_compress_attention": (compressed, lengths),
        "npu_nsa_compress_attention_infer": (
            (half(2, 4, 16), *cache, 0.5, 4, 2, 32, 4, 16, 32, 16),
            {"block_table": table, "actual_cmp_seq_kvlen": [20, 30]},
        ),
        "npu_nsa_select_attention": ((query, key, value, index, *select), ends),
        "npu_nsa_select_attention_grad": (
            (half(3, 4, 128), query, key, value, half(3, 4, 128), statistic, statistic, index, *select),
            ends,
        ),
        "npu_nsa_select_attention_infer": (
            (half(2, 4, 192), *paged, index[:2, :, :1] * 0, 0.3, 4, 2, 16, 1, 16),
            {"layout": "TND", "block_table": table, "actual_seq_kvlen": [20, 30]},
        ),
    }


def blocks() -> dict[str, Sample]:
    query, mask = half(2, 2, 4, 64), torch.ones(2, 2, 1, 1, dtype=torch.int8)
    lse = torch.rand(2, 2, 4, 1) + 2
    layouts = {"q_input_layout": "BNSD", "kv_input_layout": "BNSD", "num_key_value_heads": 2, "scale_value": 0.1}
    node, edge, other = half(1, 1, 16, 128, 32), half(1, 1, 16, 128, 32), half(1, 1, 128, 128, 32)
    statistic = torch.rand(1, 1, 16, 128, 8) + 1
    return {
        "npu_block_sparse_attention": ((query, query, query, mask, [128, 128]), {**layouts, "softmax_lse_flag": 1}),
        "npu_block_sparse_attention_backward": (
            (query, query, query, query, query, lse, mask, None, None, None, "BNSD", "BNSD", 2, 0.1),
            {},
        ),
        "npu_fused_floyd_attention": ((node, edge, edge, other, other), {"scale_value": 0.2}),
        "npu_fused_floyd_attention_backward": (
            (node, node, edge, edge, other, other, node, statistic, statistic * 99),
            {"scale_value": 0.2},
        ),
    }

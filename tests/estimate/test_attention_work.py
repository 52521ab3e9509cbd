"""Work of attention in every layout: the same tensors in another layout are the same work.

Holds src/toprope/estimate/cost/attention.py.
"""

from types import SimpleNamespace

import pytest

from toprope.estimate.cost.attention import work_of

B, N, S, K, D = 2, 4, 16, 24, 8
QUERY = {
    "BSH": (B, S, N * D), "SBH": (S, B, N * D), "BSND": (B, S, N, D), "BNSD": (B, N, S, D), "TND": (B * S, N, D),
}  # fmt: skip
KEY = {
    "BSH": (B, K, N * D), "SBH": (K, B, N * D), "BSND": (B, K, N, D), "BNSD": (B, N, K, D), "TND": (B * K, N, D),
}  # fmt: skip


def work(layout, **more):
    lengths = {"actual_seq_qlen": [S, 2 * S], "actual_seq_kvlen": [K, 2 * K]} if layout == "TND" else {}
    tensors = {"query": SimpleNamespace(shape=QUERY[layout]), "key": SimpleNamespace(shape=KEY[layout])}
    return work_of("npu_fusion_attention", {**tensors, "head_num": N, "input_layout": layout, **lengths, **more})


@pytest.mark.parametrize("layout", QUERY)
def test_the_layout_does_not_change_the_work(layout):
    found = work(layout)
    assert (found.rows, found.head, found.operations) == (B * N * S, D, 4 * B * N * S * K * D)


def test_a_causal_mask_leaves_out_half():
    assert work("BNSD", sparse_mode=2).operations == work("BNSD").operations // 2


def test_the_backward_pass_has_five_products():
    tensors = {"query": SimpleNamespace(shape=QUERY["BNSD"]), "key": SimpleNamespace(shape=KEY["BNSD"])}
    found = work_of("npu_fusion_attention_grad", {**tensors, "head_num": N, "input_layout": "BNSD"})
    assert found.operations == 10 * B * N * S * K * D


def test_what_is_not_understood_has_no_figure():
    assert work_of("npu_rms_norm", {}) is None
    odd = {"query": SimpleNamespace(shape=(2, 3)), "key": SimpleNamespace(shape=(2, 3)), "head_num": 2}
    assert work_of("npu_fusion_attention", {**odd, "input_layout": "BNSD"}) is None
    assert work("TND", actual_seq_qlen=None) is None

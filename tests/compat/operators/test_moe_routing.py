"""npu_moe_init_routing and its relatives against loops over slots.

Holds moe_routing.py in src/toprope/compat/torch_npu/operators.
"""

import numpy as np
import pytest
import torch

COUNT, TOP_K, EXPERTS, WIDTH = 6, 3, 8, 10


def experts(seed=0):
    return torch.randint(0, EXPERTS, (COUNT, TOP_K), generator=torch.Generator().manual_seed(seed)).int()


def slots_of(chosen, first=0, end=EXPERTS):
    """(expert, slot) of the active slots, expert by expert."""
    return sorted((int(e), slot) for slot, e in enumerate(chosen.flatten()) if first <= e < end)


def test_init_routing(facade):
    x, chosen = torch.randn(COUNT, WIDTH), experts()
    numbers = torch.arange(COUNT * TOP_K).view(TOP_K, COUNT).T.int()
    rows, index, ordered = facade.npu_moe_init_routing(x, numbers, chosen, 4)
    pairs = sorted((int(chosen[i, k]), i * TOP_K + k, i, k) for i in range(COUNT) for k in range(TOP_K))
    assert ordered.tolist() == [pair[0] for pair in pairs]
    assert torch.equal(rows, torch.stack([x[i] for _, _, i, _ in pairs])[: 4 * TOP_K])
    for row, (_, _, i, k) in enumerate(pairs):
        assert index[numbers[i, k]] == row
    assert facade.npu_moe_init_routing(x[:0], numbers[:0], chosen[:0], 4)[0].shape == (0, WIDTH)


@pytest.mark.parametrize("span", [[], [2, 6], [7, 8], [0, 3]])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int8])
def test_init_routing_v2_without_quantisation(facade, span, dtype):
    x, chosen, scale = torch.randn(COUNT, WIDTH).mul(9).to(dtype), experts(), torch.rand(COUNT)
    first, end = span or (0, EXPERTS)
    options = {"expert_num": EXPERTS, "active_expert_range": span, "expert_tokens_num_flag": True}
    rows, index, sums, scales = facade.npu_moe_init_routing_v2(x, chosen, scale=scale, **options)
    pairs = slots_of(chosen, first, end)
    assert rows.dtype == dtype
    assert rows.shape == (COUNT * TOP_K, WIDTH)
    for row, (_, slot) in enumerate(pairs):
        assert torch.equal(rows[row], x[slot // TOP_K])
        assert scales[row] == scale[slot // TOP_K]
    assert not rows[len(pairs) :].any()
    expected = [-1] * (COUNT * TOP_K)
    for row, (_, slot) in enumerate(pairs):
        expected[slot] = row
    assert index.tolist() == expected
    counts = [sum(e == expert for e, _ in pairs) for expert in range(first, end)]
    assert sums.tolist() == np.cumsum(counts).tolist()
    counted = facade.npu_moe_init_routing_v2(x, chosen, expert_tokens_num_type=1, row_idx_type=1, **options)
    assert counted[2].tolist() == counts
    assert counted[1][: len(pairs)].tolist() == [slot for _, slot in pairs]
    keyed = facade.npu_moe_init_routing_v2(x, chosen, expert_tokens_num_type=2, **options)[2]
    there = [[first + e, n] for e, n in enumerate(counts) if n]
    assert keyed.tolist() == there + [[0, 0]] * (EXPERTS - len(there))


def test_init_routing_v2_with_fewer_rows(facade):
    x, chosen = torch.randn(COUNT, WIDTH), experts()
    whole = facade.npu_moe_init_routing_v2(x, chosen, expert_num=EXPERTS)
    part = facade.npu_moe_init_routing_v2(x, chosen, expert_num=EXPERTS, active_num=5)
    assert torch.equal(part[0], whole[0][:5])
    assert torch.equal(part[1], whole[1])
    assert part[3].shape == (5,)
    assert not part[2].any()  # not asked for


@pytest.mark.parametrize("quant_mode", [-1, 1])
def test_init_routing_v2_with_capacity(facade, quant_mode):
    x, chosen = torch.randn(COUNT, WIDTH), experts(1)
    factors = torch.rand(EXPERTS, WIDTH) if quant_mode == 1 else torch.rand(COUNT)
    rows, index, counts, scales = facade.npu_moe_init_routing_v2(
        x, chosen, scale=factors, expert_num=EXPERTS, expert_capacity=2, drop_pad_mode=1, quant_mode=quant_mode,
        expert_tokens_num_type=1, expert_tokens_num_flag=True,
    )  # fmt: skip
    pairs, found = slots_of(chosen), [0] * EXPERTS
    expected, places = torch.zeros(EXPERTS, 2, WIDTH), [-1] * (COUNT * TOP_K)
    wanted = torch.zeros(EXPERTS * 2)
    for expert, slot in pairs:
        if found[expert] < 2:
            row = x[slot // TOP_K]
            if quant_mode == 1:
                row = row * factors[expert]
                wanted[expert * 2 + found[expert]] = row.abs().max() / 127
                row = (row / (row.abs().max() / 127)).round()
            else:
                wanted[expert * 2 + found[expert]] = factors[slot // TOP_K]
            expected[expert, found[expert]] = row
            places[slot] = expert * 2 + found[expert]
        found[expert] += 1
    assert torch.equal(rows.float(), expected)
    assert index.tolist() == places
    assert counts.tolist() == found
    torch.testing.assert_close(scales, wanted)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_static_quantisation(facade, dtype):
    x, chosen = torch.randn(COUNT, WIDTH, dtype=dtype) * 40, experts()
    scale, offset = torch.tensor([1.7]), torch.tensor([-3.3])
    rows, _, _, scales = facade.npu_moe_init_routing_v2(
        x, chosen, scale=scale, offset=offset, expert_num=EXPERTS, quant_mode=0
    )
    half = x.float().numpy().astype(np.float16) * np.float16(1.7) + np.float16(-3.3)
    whole = np.clip(np.rint(half), -128, 127).astype(np.int8)
    expected = np.stack([whole[slot // TOP_K] for _, slot in slots_of(chosen)])
    assert np.array_equal(rows.numpy(), expected)
    assert not scales.any()
    other = facade.npu_moe_init_routing_quant(
        x, chosen, scale=scale, offset=offset, active_num=0, expert_num=EXPERTS, quant_mode=0
    )
    assert torch.equal(other[0], rows)
    assert other[2] is other[3] is other[4] is None


@pytest.mark.parametrize("shape", [None, (1, WIDTH), (4, WIDTH)])
def test_dynamic_quantisation(facade, shape):
    x, chosen = torch.randn(COUNT, WIDTH, dtype=torch.bfloat16), experts()
    x[0] = 0
    factors = None if shape is None else torch.rand(shape) + 0.5
    rows, _, _, scales = facade.npu_moe_init_routing_v2(
        x, chosen, scale=factors, expert_num=EXPERTS, active_expert_range=[2, 6], quant_mode=1
    )
    pairs = slots_of(chosen, 2, 6)
    for row, (expert, slot) in enumerate(pairs):
        wide = x[slot // TOP_K].double()
        if factors is not None:
            wide = wide * factors[0 if shape[0] == 1 else expert - 2].double()
        largest = wide.abs().max()
        torch.testing.assert_close(scales[row].double(), largest / 127)
        whole = (wide * 127 / largest).round() if largest else wide
        assert (rows[row].double() - whole).abs().max() <= (0 if largest == 0 else 1)
    assert not rows[len(pairs) :].any()


def test_init_routing_quant_counts(facade):
    x, chosen = torch.randn(COUNT, WIDTH), experts()
    counts = np.bincount(chosen.flatten().numpy(), minlength=EXPERTS)
    call = facade.npu_moe_init_routing_quant
    sums = call(x, chosen, active_num=4, expert_num=EXPERTS, expert_tokens_num_mode=1)
    assert sums[0].shape == (4, WIDTH)
    assert sums[2].tolist() == np.cumsum(counts).tolist()
    assert sums[2].dtype == torch.int32
    assert call(x, chosen, expert_num=EXPERTS, expert_tokens_num_mode=2)[2].tolist() == counts.tolist()
    padded = call(
        x, chosen, expert_num=EXPERTS, expert_capacity=2, drop_pad_mode=1, expert_tokens_before_capacity_flag=True
    )
    assert padded[0].shape == (EXPERTS, 2, WIDTH)
    assert padded[3].tolist() == counts.tolist()


def test_routing_without_tokens(facade):
    empty = torch.zeros(0, TOP_K, dtype=torch.int32)
    found = facade.npu_moe_init_routing_v2(
        torch.randn(0, WIDTH), empty, expert_num=EXPERTS, expert_tokens_num_flag=True, expert_tokens_num_type=1
    )
    assert found[0].shape == (0, WIDTH)
    assert found[2].tolist() == [0] * EXPERTS


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_finalize_routing(facade, mode, weighted, dtype):
    top_k = TOP_K if weighted else 1
    total = COUNT * top_k
    rows = torch.randn((total, WIDTH) if mode in (0, 2) else (EXPERTS, 4, WIDTH), dtype=dtype)
    skips, bias = torch.randn(2, COUNT, WIDTH, dtype=dtype), torch.randn(EXPERTS, WIDTH, dtype=dtype)
    scales = torch.rand(COUNT, TOP_K, dtype=dtype) if weighted else None
    index = torch.randperm(total).int()
    if mode in (1, 3):
        index[1] = -1
    chosen = torch.randint(0, EXPERTS, (COUNT, top_k)).int()
    found = facade.npu_moe_finalize_routing(rows, *skips, bias, scales, index, chosen, mode)
    flat = rows.reshape(-1, WIDTH).double()
    expected = skips.double().sum(0)
    for i in range(COUNT):
        for k in range(top_k):
            row = int(index[k * COUNT + i] if mode in (0, 1) else index[i * top_k + k])
            value = bias[chosen[i, k]].double() + (flat[row] if row >= 0 else 0)
            expected[i] += value * (scales[i, k].double() if weighted else 1)
    torch.testing.assert_close(found, expected.to(dtype))
    bare = facade.npu_moe_finalize_routing(rows, None, None, None, scales, index, None, mode)
    assert bare.shape == (COUNT, WIDTH)


def test_finalize_routing_without_scales_of_several_experts(facade):
    rows, index = torch.randn(6, 4), torch.tensor([3, 0, 5, 1, 4, 2], dtype=torch.int32)
    found = facade.npu_moe_finalize_routing(rows, None, None, None, None, index, None, 2, 3)
    torch.testing.assert_close(found, rows[index.long()].view(2, 3, 4).sum(1))


def test_compute_expert_tokens(facade):
    ordered = torch.tensor([0, 0, 2, 2, 2, 5], dtype=torch.int32)
    found = facade.npu_moe_compute_expert_tokens(ordered, 5)
    assert found.tolist() == [int((ordered <= expert).sum()) for expert in range(5)]
    assert found.dtype == torch.int32
    assert facade.npu_moe_compute_expert_tokens(ordered[:0], 3).tolist() == [0, 0, 0]
    with pytest.raises(RuntimeError, match="num_expert is 0"):
        facade.npu_moe_compute_expert_tokens(ordered, 0)
    with pytest.raises(RuntimeError, match=r"torch.int64"):
        facade.npu_moe_compute_expert_tokens(ordered.long(), 2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8])
def test_re_routing(facade, dtype):
    counts = torch.tensor([[2, 0, 3], [1, 2, 0]])
    total = int(counts.sum())
    tokens, scales = torch.randint(-9, 9, (total, 4)).to(dtype), torch.rand(total)
    found = facade.npu_moe_re_routing(tokens, counts, per_token_scales=scales)
    names = [(rank, e) for rank in range(2) for e in range(3) for _ in range(counts[rank, e])]
    order = sorted(range(total), key=lambda row: (names[row][1], names[row][0], row))
    assert found[2].tolist() == order
    assert torch.equal(found[0], tokens[order])
    assert torch.equal(found[1], scales[order])
    assert found[3].tolist() == counts.sum(0).tolist()
    assert facade.npu_moe_re_routing(tokens, counts.int())[3].dtype == torch.int32
    assert facade.npu_moe_re_routing(tokens[:0], counts * 0)[0].shape == (0, 4)


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("pruned", [True, False])
def test_update_expert(facade, mode, pruned):
    table = torch.zeros(EXPERTS, 5, dtype=torch.int32)
    for expert in range(EXPERTS):
        table[expert, 0] = 1 + expert % 4
        table[expert, 1:] = torch.randperm(16)[:4]
    chosen, scales, limits = experts(), torch.rand(COUNT, TOP_K), torch.rand(1, TOP_K) * 0.5
    active = torch.tensor([True] * 4 + [False] * 2)
    keywords = {"expert_scales": scales, "pruning_threshold": limits, "active_mask": active} if pruned else {}
    ids, mask = facade.npu_moe_update_expert(
        chosen, table, local_rank_id=5, world_size=8, balance_mode=mode, **keywords
    )
    for i in range(COUNT):
        for k in range(TOP_K):
            row = table[chosen[i, k]].tolist()
            place = 5 // -(-8 // row[0]) if mode == 0 else i % row[0]
            assert ids[i, k] == row[1 + place]
            if pruned:
                stays = bool(active[i]) and float(scales[i].sum() * limits[0, k]) < float(scales[i, k])
                assert bool(mask[i, k]) == stays


def test_refusals(facade):
    x, chosen = torch.randn(COUNT, WIDTH), experts()
    call = facade.npu_moe_init_routing_v2
    with pytest.raises(RuntimeError, match="The x should be 2-Dimension, current is 1-Dimension"):
        call(x[0], chosen, expert_num=EXPERTS)
    with pytest.raises(RuntimeError, match="The length of list active_expert_range should be 2, current is 3"):
        call(x, chosen, expert_num=EXPERTS, active_expert_range=[1, 2, 3])
    with pytest.raises(RuntimeError, match="must be increasing"):
        call(x, chosen, expert_num=EXPERTS, active_expert_range=[3, 3])
    with pytest.raises(RuntimeError, match=r"quant_mode 2 .* is not simulated"):
        call(x, chosen, expert_num=EXPERTS, quant_mode=2)
    with pytest.raises(RuntimeError, match="quant_mode is 21"):
        call(x, chosen, expert_num=EXPERTS, quant_mode=21)
    with pytest.raises(RuntimeError, match="needs scale and offset"):
        call(x, chosen, expert_num=EXPERTS, quant_mode=0)
    with pytest.raises(RuntimeError, match="expert_capacity is -1"):
        call(x, chosen, expert_num=EXPERTS, drop_pad_mode=1)
    with pytest.raises(RuntimeError, match=r"expert_idx is torch.int64"):
        call(x, chosen.long(), expert_num=EXPERTS)
    with pytest.raises(RuntimeError, match="int32 tensor expected but got a tensor with dtype: Long"):
        facade.npu_moe_init_routing(x, chosen, chosen.long(), 4)
    with pytest.raises(RuntimeError, match="Parameter 'quant_mode' must be 0 or 1, but got: 3"):
        facade.npu_moe_init_routing_quant(x, chosen, quant_mode=3)
    with pytest.raises(RuntimeError, match="skip2 is given without skip1"):
        facade.npu_moe_finalize_routing(x, None, x, None, None, torch.arange(COUNT).int(), None)
    with pytest.raises(RuntimeError, match="tokens dim should larger than 1"):
        facade.npu_moe_re_routing(x[0], torch.ones(1, 1))
    with pytest.raises(RuntimeError, match="rank -1 of -1"):
        facade.npu_moe_update_expert(chosen, torch.ones(EXPERTS, 2, dtype=torch.int32))

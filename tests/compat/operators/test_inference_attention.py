"""npu_fused_infer_attention_score and its relatives against softmax over plain loops in float64.

Holds fused_infer_attention.py, inference_attention.py, inference_layout.py and sequence_attention.py in
src/toprope/compat/torch_npu/operators.
"""

import math

import numpy as np
import pytest
import torch

HALF = torch.float16


def reference(query, key, value, scale, allowed=lambda head, i, j: True, bias=None, sink=None):
    """Attention of one sequence: [N, Sq, D], [Nkv, Sk, D], [Nkv, Sk, Dv]; also the logarithm of the sum."""
    query, key, value = (np.asarray(x.double()) for x in (query, key, value))
    group = query.shape[0] // key.shape[0]
    out = np.zeros((query.shape[0], query.shape[1], value.shape[2]))
    lse = np.full((query.shape[0], query.shape[1]), np.inf)
    for head in range(query.shape[0]):
        for i in range(query.shape[1]):
            chosen = [j for j in range(key.shape[1]) if allowed(head, i, j)]
            if not chosen:
                continue
            scores = [scale * float(query[head, i] @ key[head // group, j]) for j in chosen]
            if bias is not None:
                scores = [score + float(bias[head, i, j]) for score, j in zip(scores, chosen, strict=True)]
            total = sum(math.exp(score) for score in scores)
            if sink is not None:
                total += math.exp(float(sink[head]))
            for score, j in zip(scores, chosen, strict=True):
                out[head, i] += math.exp(score) / total * value[head // group, j]
            lse[head, i] = math.log(total)
    return torch.from_numpy(out), torch.from_numpy(lse)


def close(found, wanted, tolerance=2e-3):
    torch.testing.assert_close(found.double(), wanted.double(), rtol=tolerance, atol=tolerance)


def tensors(*shapes, dtype=HALF):
    torch.manual_seed(7)
    return [torch.randn(shape).to(dtype) for shape in shapes]


def to_layout(tensor, layout):
    """[B, N, S, D] in another layout."""
    if layout == "BNSD":
        return tensor
    if layout == "NBSD":
        return tensor.transpose(0, 1)
    if layout == "BSND":
        return tensor.transpose(1, 2)
    if layout == "BSH":
        return tensor.transpose(1, 2).flatten(2)
    rows = tensor.transpose(1, 2).flatten(0, 1)
    return rows if layout == "TND" else rows.transpose(0, 1)


@pytest.mark.parametrize(
    "layout",
    ["BSH", "BSND", "BNSD", "TND", "NTD", "BNSD_BSND", "BSH_BNSD", "BSND_BNSD", "NTD_TND", "BSH_NBSD", "BSND_NBSD",
     "BNSD_NBSD", "TND_NTD"],
)  # fmt: skip
def test_layouts(facade, layout):
    query, key, value = tensors((2, 4, 3, 16), (2, 2, 5, 16), (2, 2, 5, 8))
    inputs, _, result = layout.partition("_")
    packed = "T" in inputs
    found, lse = facade.npu_fused_infer_attention_score(
        *(to_layout(tensor, inputs).contiguous() for tensor in (query, key, value)),
        num_heads=4,
        num_key_value_heads=2,
        scale=0.25,
        input_layout=layout,
        softmax_lse_flag=True,
        actual_seq_lengths=[3, 6] if packed else None,
        actual_seq_lengths_kv=[5, 10] if packed else None,
    )
    pairs = [reference(*(tensor[b] for tensor in (query, key, value)), 0.25) for b in (0, 1)]
    wanted, logarithms = (torch.stack(parts) for parts in zip(*pairs, strict=True))
    close(found, to_layout(wanted, result or inputs))
    assert found.dtype == HALF
    assert lse.dtype == torch.float32
    assert found.is_contiguous()
    close(lse, to_layout(logarithms[..., None], "TND") if packed else logarithms[..., None])


def test_one_batch_without_its_axis(facade):
    query, key = tensors((4, 3, 16), (4, 5, 16))
    found, _ = facade.npu_fused_infer_attention_score(query, key, key, num_heads=4, scale=0.25, input_layout="NSD")
    close(found, reference(query, key, key, 0.25)[0])


@pytest.mark.parametrize(
    ("mode", "allowed"),
    [
        (2, lambda head, i, j: j <= i),
        (3, lambda head, i, j: j <= i + 3),
        (4, lambda head, i, j: i + 3 - 2 <= j <= i + 3 + 1),
    ],
)
def test_compressed_masks(facade, mode, allowed):
    query, key = tensors((1, 2, 4, 16), (1, 2, 7, 16))
    mask = torch.ones(2048, 2048, dtype=torch.bool).triu(1)
    for shape in ((2048, 2048), (1, 1, 2048, 2048)):
        found, _ = facade.npu_fused_infer_attention_score(
            query, key, key, atten_mask=mask.reshape(shape), num_heads=2, scale=0.25, input_layout="BNSD",
            sparse_mode=mode, pre_tokens=2, next_tokens=1,
        )  # fmt: skip
        close(found[0], reference(query[0], key[0], key[0], 0.25, allowed)[0])


def test_whole_masks_bands_and_biases(facade):
    query, key, pse = tensors((2, 2, 4, 16), (2, 2, 7, 16), (1, 2, 4, 7))
    mask = torch.rand(2, 1, 4, 7) < 0.3
    for mode in (0, 1):
        found, _ = facade.npu_fused_infer_attention_score(
            query, key, key, atten_mask=mask, pse_shift=pse, num_heads=2, scale=0.25, input_layout="BNSD",
            sparse_mode=mode, pre_tokens=1, next_tokens=3, inner_precise=2,
        )  # fmt: skip
        for b in (0, 1):

            def allowed(head, i, j, b=b, mode=mode):
                return not mask[b, 0, i, j] and (mode == 1 or i - 1 <= j <= i + 3)

            close(found[b], reference(query[b], key[b], key[b], 0.25, allowed, pse[0])[0])


def test_a_bias_or_mask_with_another_number_of_heads_was_taken_for_all(facade):
    query, key = tensors((1, 4, 1, 16), (1, 4, 7, 16))
    given = {"num_heads": 4, "scale": 0.25, "input_layout": "BNSD"}
    for shape in ((1, 1, 1, 7), (1, 2, 1, 7), (1, 1, 7)):
        with pytest.raises(RuntimeError, match=r"pse_shift is .*; the kernel takes \[B or 1, 4 heads, queries, keys\]"):
            facade.npu_fused_infer_attention_score(query, key, key, pse_shift=torch.zeros(shape).half(), **given)
    with pytest.raises(RuntimeError, match="one mask for all heads"):
        facade.npu_fused_infer_attention_score(query, key, key, atten_mask=torch.zeros(1, 4, 1, 7).bool(), **given)


def test_single_tokens_have_a_mask_for_each_batch_and_no_band(facade):
    query, key = tensors((2, 2, 1, 16), (2, 2, 7, 16))
    mask = torch.rand(2, 7) < 0.4
    found, _ = facade.npu_fused_infer_attention_score(
        query, key, key, atten_mask=mask, num_heads=2, scale=0.25, input_layout="BNSD", pre_tokens=0, next_tokens=0,
        actual_seq_lengths_kv=[7, 5],
    )  # fmt: skip
    for b, length in enumerate((7, 5)):
        wanted = reference(query[b], key[b, :, :length], key[b, :, :length], 0.25, lambda h, i, j, b=b: not mask[b, j])
        close(found[b], wanted[0])


def test_rows_without_keys(facade):
    query, key = tensors((1, 1, 2, 16), (1, 1, 4, 16))
    mask = torch.tensor([[True] * 4, [False] * 4])
    given = {"num_heads": 1, "input_layout": "BNSD", "atten_mask": mask, "sparse_mode": 1, "softmax_lse_flag": True}
    found, lse = facade.npu_fused_infer_attention_score(query, key, key, inner_precise=2, **given)
    assert not found[0, 0, 0].any()
    assert lse[0, 0, 0] == torch.inf
    found, _ = facade.npu_fused_infer_attention_score(query, key, key, **given)
    close(found[0, 0, 0], key[0, 0].float().mean(0))


def test_lengths_and_left_padding(facade):
    query, key = tensors((2, 2, 6, 16), (2, 2, 9, 16))
    given = {"num_heads": 2, "scale": 0.25, "input_layout": "BNSD", "softmax_lse_flag": True}
    lengths = {"actual_seq_lengths": [4, 2], "actual_seq_lengths_kv": [9, 0]}
    found, lse = facade.npu_fused_infer_attention_score(query, key, key, **given, **lengths)
    close(found[0, :, :4], reference(query[0, :, :4], key[0], key[0], 0.25)[0])
    assert not found[0, :, 4:].any()
    assert not found[1].any()
    assert (lse[1] == torch.inf).all()
    padding = {"query_padding_size": torch.tensor(1), "kv_padding_size": torch.tensor(2)}
    lengths = {"actual_seq_lengths": [4, 2], "actual_seq_lengths_kv": [7, 3]}
    found, _ = facade.npu_fused_infer_attention_score(query, key, key, **given, **lengths, **padding)
    for b, (queries, keys) in enumerate(((4, 7), (2, 3))):
        rows, columns = slice(5 - queries, 5), slice(7 - keys, 7)
        close(found[b, :, rows], reference(query[b, :, rows], key[b, :, columns], key[b, :, columns], 0.25)[0])
        assert not found[b, :, 5:].any()


def blocks(tokens, kind):
    """[blocks, N, S, D] in one of the forms of a cache."""
    if kind == "BnBsH":
        return tokens.transpose(1, 2).flatten(2).contiguous()
    if kind == "BnNBsD":
        return tokens
    return tokens.unflatten(3, (-1, 16)).transpose(2, 3).contiguous()


@pytest.mark.parametrize("kind", ["BnBsH", "BnNBsD", "NZ"])
@pytest.mark.parametrize("layout", ["BNSD", "TND"])
def test_a_cache_in_blocks(facade, kind, layout):
    cache, query, rope, query_rope = tensors((5, 2, 4, 32), (3, 4, 2, 32), (5, 2, 4, 16), (3, 4, 2, 16))
    table = torch.tensor([[4, 0, 2], [1, 3, 0], [2, 2, 2]], dtype=torch.int32)
    lengths = [11, 5, 4]
    found, _ = facade.npu_fused_infer_attention_score_v2(
        to_layout(query, layout), blocks(cache, kind), blocks(cache, kind), query_rope=to_layout(query_rope, layout),
        key_rope=blocks(rope, kind), block_table=table, block_size=4, input_layout=layout, num_query_heads=4,
        num_key_value_heads=2, softmax_scale=0.1, actual_seq_kvlen=lengths,
        actual_seq_qlen=[2, 4, 6] if layout == "TND" else None,
    )  # fmt: skip
    wanted = []
    for b, length in enumerate(lengths):
        key, more = (x[table[b].long()].transpose(0, 1).flatten(1, 2)[:, :length] for x in (cache, rope))
        wanted.append(
            reference(torch.cat((query[b], query_rope[b]), -1), torch.cat((key, more), -1), key, 0.1)[0].float()
        )
    close(found, to_layout(torch.stack(wanted), layout))


def test_a_shared_prefix(facade):
    query, key, prefix = tensors((2, 2, 3, 16), (2, 2, 4, 16), (1, 2, 6, 16))
    found, _ = facade.npu_fused_infer_attention_score(
        query, key, key, key_shared_prefix=prefix, value_shared_prefix=prefix, actual_shared_prefix_len=[5],
        num_heads=2, scale=0.25, input_layout="BNSD",
    )  # fmt: skip
    for b in (0, 1):
        whole = torch.cat((prefix[0, :, :5], key[b]), 1)
        close(found[b], reference(query[b], whole, whole, 0.25)[0])


SCALES = {0: (1, 2, 1, 16), 1: (1, 2, 9), 2: (2,), 3: (1, 2, 2, 9)}


@pytest.mark.parametrize("mode", SCALES)
def test_int8_keys_and_values(facade, mode):
    (query,) = tensors((2, 4, 1, 16))
    stored = torch.randint(-128, 128, (2, 2, 9, 16), dtype=torch.int8)
    scale = torch.rand(SCALES[mode]) * 0.02
    offset = torch.randint(-5, 6, SCALES[mode]).float()
    found, _ = facade.npu_fused_infer_attention_score(
        query, stored, stored, key_antiquant_scale=scale, value_antiquant_scale=scale, key_antiquant_offset=offset,
        value_antiquant_offset=offset, key_antiquant_mode=mode, value_antiquant_mode=mode, num_heads=4,
        num_key_value_heads=2, scale=0.25, input_layout="BNSD",
    )  # fmt: skip
    spread = {0: (1, 2, 1, 16), 1: (2, 1, 9, 1), 2: (1, 2, 1, 1), 3: (2, 2, 9, 1)}[mode]
    numbers = (stored.double() + offset.reshape(spread)) * scale.reshape(spread)
    for b in (0, 1):
        close(found[b], reference(query[b], numbers[b], numbers[b], 0.25)[0], 5e-3)


def test_stacked_scales_and_int4(facade):
    (query,) = tensors((1, 1, 1, 16))
    nibbles = torch.randint(-8, 8, (1, 1, 5, 16))
    packed = sum((nibbles.unflatten(-1, (2, 8))[..., i] & 15) << (4 * i) for i in range(8))
    packed = torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)
    found, _ = facade.npu_fused_infer_attention_score(
        query, packed, packed, antiquant_scale=torch.tensor([0.1, 0.2]), num_heads=1, scale=0.25, input_layout="BNSD"
    )
    close(found[0], reference(query[0], nibbles[0] * 0.1, nibbles[0] * 0.2, 0.25)[0])


def test_int8_inputs_and_results(facade):
    integers = [torch.randint(-20, 21, (1, 2, 3, 32), dtype=torch.int8) for _ in range(3)]
    given = {"num_heads": 2, "scale": 0.1, "input_layout": "BNSD"}
    bits = torch.tensor([0.01]).view(torch.int32).long()
    scales = {"dequant_scale1": bits, "quant_scale1": torch.tensor([127.0]), "dequant_scale2": torch.tensor([0.02])}
    found, _ = facade.npu_fused_infer_attention_score(*integers, **given, **scales)
    assert found.dtype == HALF
    scores = integers[0].double() @ integers[1].double().transpose(-1, -2) * 0.01 * 0.1
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    wanted = (weights * 127).round() @ integers[2].double() * 0.02 / weights.sum(-1, keepdim=True)
    close(found, wanted)
    quantised = {"quant_scale2": torch.rand(2, 32) * 40, "quant_offset2": torch.rand(2, 32)}
    small, _ = facade.npu_fused_infer_attention_score(*integers, **given, **scales, **quantised)
    whole = (wanted * quantised["quant_scale2"][:, None] + quantised["quant_offset2"][:, None]).clamp(-128, 127)
    assert small.dtype == torch.int8
    assert (small - whole).abs().max() < 0.51


def test_a_sink(facade):
    query, key = tensors((5, 2, 16), (7, 2, 16), dtype=torch.bfloat16)
    sink = torch.tensor([0.5, -1.0], dtype=torch.bfloat16)
    found, lse = facade.npu_fused_infer_attention_score_v2(
        query, key, key, learnable_sink=sink, num_query_heads=2, softmax_scale=0.25, input_layout="TND",
        actual_seq_qlen=[5], actual_seq_kvlen=[7], return_softmax_lse=True,
    )  # fmt: skip
    turned = [x.transpose(0, 1) for x in (query, key, key)]
    wanted, logarithm = reference(*turned, 0.25, sink=sink)
    close(found, wanted.transpose(0, 1), 1e-2)
    close(lse[..., 0], logarithm.transpose(0, 1))


def test_many_queries_are_computed_in_blocks(facade, monkeypatch):
    from toprope.compat.torch_npu.operators import sequence_attention

    query, key, pse = tensors((1, 2, 9, 16), (1, 2, 9, 16), (1, 2, 9, 9))
    mask = torch.ones(9, 9, dtype=torch.bool).triu(1)
    given = {"num_heads": 2, "input_layout": "BNSD", "atten_mask": mask, "pse_shift": pse, "softmax_lse_flag": True}
    whole = facade.npu_fused_infer_attention_score(query, key, key, **given)
    monkeypatch.setattr(sequence_attention, "_SCORES_AT_ONCE", 40)
    for found, wanted in zip(facade.npu_fused_infer_attention_score(query, key, key, **given), whole, strict=True):
        close(found, wanted, 1e-3)


def test_into_tensors_that_are_there(facade):
    query, key = tensors((1, 4, 2, 16), (1, 4, 5, 16))
    given = {"num_heads": 4, "input_layout": "BNSD", "softmax_lse_flag": True}
    wanted = facade.npu_fused_infer_attention_score(query, key, key, **given)
    space = facade._npu_fused_infer_attention_score_get_max_workspace(query, key, key, **given)
    out = list(facade._npu_fused_infer_attention_score_infer_output(query, key, **given))
    assert [x.shape for x in out] == [x.shape for x in wanted]
    facade.npu_fused_infer_attention_score.out(query, key, key, workspace=space, out=out, **given)
    named = torch.empty(1, 4, 32, dtype=HALF), torch.empty(1, 4, 2, 1)
    facade.npu_fused_infer_attention_score.out(query, key, key, out=named, **given)
    for a, b, c in zip(out, named, wanted, strict=True):
        assert a.equal(c)
        assert b.reshape(c.shape).equal(c)
    with pytest.raises(RuntimeError, match="attention_out"):
        facade.npu_fused_infer_attention_score.out(query, key, key, out=[out[0][:, :1].contiguous(), out[1]], **given)


def test_forerunners(facade):
    query, key = tensors((2, 4, 3, 16), (2, 2, 5, 16))
    heads = {"num_heads": 4, "num_key_value_heads": 2, "scale_value": 0.25, "input_layout": "BNSD"}
    found = facade.npu_prompt_flash_attention(query, key, key, **heads)  # next_tokens=0 takes a mask
    close(found[0], reference(query[0], key[0], key[0], 0.25)[0])
    single = query[:, :, :1].contiguous()
    found = facade.npu_incre_flash_attention(single, key, key, actual_seq_lengths=[2, 5], **heads)
    close(found[0], reference(single[0], key[0, :, :2], key[0, :, :2], 0.25)[0])
    with pytest.raises(RuntimeError, match="one token"):
        facade.npu_incre_flash_attention(query, key, key, **heads)


def test_scores_of_prompts_are_float16_unless_high_precision_is_asked_for(facade):
    noise, value = tensors((1, 2, 16, 128), (1, 2, 16, 128))
    query, key = (
        torch.ones(1, 2, 8, 128, dtype=HALF),
        1 + noise / 100,
    )  # products near 128: steps of 1/8
    product, scale = query[0].float() @ key[0].float().transpose(1, 2), 8.0
    exact = (product * scale).softmax(-1) @ value[0].float()
    rounded = (product.half().float() * scale).half().float().softmax(-1) @ value[0].float()
    assert (exact - rounded).abs().max() > 0.05
    given = {"num_heads": 2, "input_layout": "BNSD"}
    prompts = facade.npu_prompt_flash_attention
    fused = facade.npu_fused_infer_attention_score
    close(prompts(query, key, value, scale_value=scale, **given)[0], rounded)
    close(prompts(query, key, value, scale_value=scale, sparse_mode=10, **given)[0], exact)
    close(fused(query, key, value, scale=scale, inner_precise=1, **given)[0][0], rounded)
    close(fused(query, key, value, scale=scale, inner_precise=0, **given)[0][0], exact)
    mask = torch.ones(2048, 2048, dtype=torch.bool).triu(1)
    given |= {"atten_mask": mask, "scale_value": 0.01}
    close(*[prompts(query, key, value, sparse_mode=mode, **given) for mode in (2, 12)])
    with pytest.raises(RuntimeError, match="sparse_mode 15"):
        prompts(query, key, value, sparse_mode=15, **given)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"num_heads": 0}, "num_heads should be greater than 0"),
        ({"input_layout": "SBH"}, "layout only support"),
        ({"input_layout": "BSH"}, "query's dim should be consistent"),
        ({"num_heads": 3}, "num_heads is 3"),
        ({"num_key_value_heads": 3}, "multiple of the 3"),
        ({"sparse_mode": 3}, "takes an atten_mask"),
        ({"sparse_mode": 6}, "not simulated"),
        ({"sparse_mode": 2, "atten_mask": torch.zeros(4, 4, dtype=torch.bool)}, "compressed atten_mask"),
        ({"atten_mask": torch.zeros(4, 4)}, "takes bool, int8 and uint8"),
        ({"atten_mask": torch.zeros(2, 2, dtype=torch.bool)}, "is smaller than"),
        ({"inner_precise": 4}, "inner_precise is 4"),
        ({"block_table": torch.zeros(1, 1, dtype=torch.int32)}, "lengths of key and value"),
        ({"actual_seq_lengths_kv": [9]}, "not within"),
        ({"query_rope": torch.zeros(1, 4, 4, 16, dtype=HALF)}, "belong together"),
        ({"quant_scale1": torch.ones(1)}, "to an int8 query"),
    ],
)
def test_refusals(facade, changed, text):
    query, key = tensors((1, 4, 4, 16), (1, 4, 4, 16))
    with pytest.raises(RuntimeError, match=text):
        facade.npu_fused_infer_attention_score(query, key, key, **({"num_heads": 4, "input_layout": "BNSD"} | changed))


def test_refusals_of_tensors(facade):
    query, key = tensors((1, 4, 4, 16), (1, 4, 4, 16))
    given = {"num_heads": 4, "input_layout": "BNSD"}
    for bad, text in (
        ((query.float(), key, key), "query is torch.float32"),
        ((query, key.bfloat16(), key.bfloat16()), "one dtype"),
        ((query, key, key.bfloat16()), "key is torch.float16"),
        ((query, key[..., :8], key), "one size"),
        ((query, key[0], key[0]), "value'dim should equal"),
        ((query, key.to(torch.int8), key.to(torch.int8)), "scales are missing"),
    ):
        with pytest.raises(RuntimeError, match=text):
            facade.npu_fused_infer_attention_score(*bad, **given)


def test_empty_inputs(facade):
    query, key = tensors((1, 2, 3, 16), (1, 2, 0, 16))
    found, _ = facade.npu_fused_infer_attention_score(query, key, key, num_heads=2, input_layout="BNSD")
    assert found.shape == query.shape
    assert not found.any()
    found, _ = facade.npu_fused_infer_attention_score(query[:, :, :0], query, query, num_heads=2, input_layout="BNSD")
    assert found.shape == (1, 2, 0, 16)

"""Attention operators of torch.ops.atb and npu_attention_update, against attention of one sequence in float64.

Holds atb_flash_attention.py, atb_paged_attention.py, latent_attention.py and packed_attention.py in
src/toprope/compat/torch_npu/operators.
"""

import pytest
import torch

HALF, WIDE = torch.float16, torch.bfloat16
LENGTHS, KEYS = [3, 5], [7, 6]


def reference(query, key, value, scale, bias=None):
    """[Sq, N, D], [Sk, Nkv, D], [Sk, Nkv, Dv] in float64: the result and the logarithm of the sum [Sq, N]."""
    group = query.shape[1] // key.shape[1]
    key, value = (x.double().repeat_interleave(group, 1) for x in (key, value))
    scores = torch.einsum("ind,jnd->nij", query.double(), key) * scale
    if bias is not None:
        scores = scores + bias.double()
    return torch.einsum("nij,jnd->ind", scores.softmax(-1), value), scores.logsumexp(-1).transpose(0, 1)


def close(found, wanted, tolerance=2e-3):
    torch.testing.assert_close(found.double(), wanted.double(), rtol=tolerance, atol=tolerance)


def causal(queries, keys):
    return torch.full((queries, keys), -torch.inf).triu(keys - queries + 1)


def tokens(dtype=HALF, count=8):
    torch.manual_seed(3)
    return torch.randn(count, 4, 16).to(dtype), torch.randn(count, 2, 16).to(dtype), torch.randn(count, 2, 8).to(dtype)


def encoded(query, key, value, bias):
    parts, start = [], 0
    for index, length in enumerate(LENGTHS):
        rows = slice(start, start + length)
        parts.append(reference(query[rows], key[rows], value[rows], 0.25, bias(index, length))[0])
        start += length
    return torch.cat(parts)


@pytest.mark.parametrize("dtype", [HALF, WIDE])
def test_whole_sequences(facade, dtype):
    query, key, value = tokens(dtype)
    lengths, tolerance = torch.tensor(LENGTHS, dtype=torch.int32), 2e-3 if dtype is HALF else 2e-2
    mask = torch.full((8, 8), -10000.0 if dtype is HALF else 1.0, dtype=dtype).triu(1)
    wanted = encoded(query, key, value, lambda index, length: causal(length, length))
    out = query.new_zeros(8, 4, 8)
    facade._npu_flash_attention(query, key, value, mask, lengths, 0.25, 4, 2, out)
    close(out, wanted, tolerance)
    flat = query.new_zeros(8, 32)
    facade._npu_flash_attention_v3(
        query.flatten(1), key.flatten(1), value.flatten(1), mask[:4, :4], lengths, 0.25, 4, 2, out=flat
    )
    close(flat.reshape(8, 4, 8), wanted, tolerance)
    out.zero_()
    facade.atb._npu_flash_attention_v2(
        query, key, value, LENGTHS, mask=mask, mask_type=1, scale_value=0.25, num_heads=4, num_kv_heads=2, out=out
    )
    close(out, wanted, tolerance)
    free = encoded(query, key, value, lambda index, length: None)
    for call in (facade._npu_flash_attention_unpad, facade._npu_flash_attention_unpad_v2):
        out.zero_()
        call(query, key, value, lengths, 0.25, 4, 2, out=out)
        close(out, free, tolerance)


def distances(queries, keys, root):
    distance = (torch.arange(keys) - torch.arange(queries)[:, None] - (keys - queries)).double()
    return distance.abs().sqrt() * distance.sign() if root else distance


@pytest.mark.parametrize("root", [False, True])
def test_compressed_distances(facade, root):
    query, key, value = tokens()
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625])
    mask = torch.nan_to_num(-distances(4, 4, root) + torch.full((4, 4), 60000.0).triu(1)).half()
    out = query.new_zeros(8, 4, 8)
    facade.atb._npu_flash_attention_v2(
        query, key, value, LENGTHS, mask=mask, slopes=-slopes, mask_type=5 if root else 4, scale_value=0.25,
        num_heads=4, num_kv_heads=2, out=out,
    )  # fmt: skip

    def bias(index, length):
        spread = slopes[:, None, None] * distances(length, length, root)
        return spread.masked_fill(causal(length, length) < 0, -1e4)

    close(out, encoded(query, key, value, bias))
    whole = torch.stack([bias(0, 8)[head] for head in range(4)]).half()
    out.zero_()
    facade.atb._npu_flash_attention_v2(
        query, key, value, LENGTHS, mask=whole, scale_value=0.25, num_heads=4, num_kv_heads=2, out=out
    )
    close(out, encoded(query, key, value, lambda index, length: whole[:, :length, :length]))


def cached():
    torch.manual_seed(5)
    keys, values = torch.randn(6, 4, 2, 16).half(), torch.randn(6, 4, 2, 8).half()
    table = torch.tensor([[5, 1], [0, 3]], dtype=torch.int32)
    read = [[cache[table[b].long()].flatten(0, 1)[: KEYS[b]] for b in (0, 1)] for cache in (keys, values)]
    return keys, values, table, read


def attended(query, read, lengths, bias):
    parts, start = [], 0
    for b, length in enumerate(lengths):
        parts.append(reference(query[start : start + length], read[0][b], read[1][b], 0.25, bias(b, length))[0])
        start += length
    return torch.cat(parts)


def test_single_tokens_over_blocks(facade):
    keys, values, table, read = cached()
    query, lengths = torch.randn(2, 4, 16).half(), torch.tensor(KEYS, dtype=torch.int32)
    wanted = attended(query, read, [1, 1], lambda b, length: None)
    out = query.new_zeros(2, 4, 8)
    space = facade._npu_paged_attention_get_workspace(query, keys, values, 2, 4, 0.25, table, lengths, out)
    facade._npu_paged_attention(query, keys, values, 2, 4, 0.25, table, lengths, out, workspace=space)
    close(out, wanted)
    out.zero_()
    nz = [cache.flatten(2).unflatten(2, (-1, 16)).transpose(1, 2).contiguous() for cache in (keys, values)]
    facade._npu_paged_attention(query, *nz, 2, 4, 0.25, table, lengths, out)
    close(out, wanted)
    mask = torch.randn(2, 4, 1, 8).half()
    facade.atb._npu_paged_attention_v2(
        query, keys, table, KEYS, value_cache=values, mask=mask, num_kv_heads=2, num_heads=4, scale_value=0.25,
        mask_type=2, out=out,
    )  # fmt: skip
    close(out, attended(query, read, [1, 1], lambda b, length: mask[b, :, :, : KEYS[b]]))
    facade._npu_paged_attention_mla(query, keys, 2, 4, 0.25, table, lengths, 8, out)
    first = [read[0], [key[..., :8] for key in read[0]]]
    close(out, attended(query, first, [1, 1], lambda b, length: None))


def test_several_tokens_over_blocks(facade):
    keys, values, table, read = cached()
    query, out = tokens()[0], torch.zeros(8, 4, 8).half()
    asked, lengths = (torch.tensor(x, dtype=torch.int32) for x in (LENGTHS, KEYS))
    wanted = attended(query, read, LENGTHS, lambda b, length: causal(length, KEYS[b]))
    mask = torch.zeros(8, 7)
    start = 0
    for b, length in enumerate(LENGTHS):
        mask[start : start + length, : KEYS[b]] = causal(length, KEYS[b]).clamp(min=-10000)
        start += length
    facade._npu_paged_attention_splitfuse(query, keys, values, table, lengths, mask.half(), asked, 2, 4, 0.25, out)
    close(out, wanted)
    square = torch.full((8, 8), -10000.0).half().triu(1)
    for number in (5, None):
        out.zero_()
        facade._npu_paged_attention_splitfuse_v2(
            query, keys, values, table, lengths, square, asked, 2, 4, 0.25, mask_type=number, out=out
        )
        close(out, wanted)
    out.zero_()
    facade._npu_flash_attention_qlens(query, keys, values, table, square, asked, lengths, 2, 4, 0.25, out)
    close(out, wanted)
    out.zero_()
    facade.atb._npu_flash_attention_prefix_v2(
        query, keys.flatten(2), values.flatten(2), table, square, LENGTHS, KEYS, num_kv_heads=2, num_heads=4,
        scale_value=0.25, out=out,
    )  # fmt: skip
    close(out, wanted)


def test_int8_caches(facade):
    _, _, table, _ = cached()
    stored = torch.randint(-100, 101, (6, 4, 2, 16), dtype=torch.int8)
    read = [[stored[table[b].long()].flatten(0, 1)[: KEYS[b]].double() for b in (0, 1)]] * 2
    lengths, out = torch.tensor(KEYS, dtype=torch.int32), torch.zeros(2, 4, 16).half()
    query, channels = torch.randn(2, 4, 16).half(), torch.rand(32) * 0.02
    call = facade._npu_paged_attention_quant
    bits = channels.view(torch.int32).long()
    call(query, stored, stored, 2, 4, 0.25, table, lengths, 1, 1, bits, bits, out)
    numbers = [x * channels.reshape(2, 16).double() for x in read[0]]
    close(out, attended(query, [numbers, numbers], [1, 1], lambda b, length: None), 5e-3)
    integers, heads = torch.randint(-100, 101, (2, 4, 16), dtype=torch.int8), torch.rand(4) * 1e-3
    call(integers, stored, stored, 2, 4, 0.25, table, lengths, 3, 1, heads, heads, out)
    for b in (0, 1):
        key = read[0][b].repeat_interleave(2, 1)
        scores = torch.einsum("nd,jnd->nj", integers[b].double(), key) * heads[:, None] * 0.25
        weights = (scores - scores.amax(-1, keepdim=True)).exp()
        wanted = torch.einsum("nj,jnd->nd", (weights * 127).round(), key) * heads[:, None] / 127
        close(out[b], wanted / weights.sum(-1, keepdim=True))
    with pytest.raises(RuntimeError, match="quant_type 2 is not simulated"):
        call(integers, stored, stored, 2, 4, 0.25, table, lengths, 2, 1, heads, heads, out)


def test_refusals(facade):
    query, key, value = tokens()
    keys, values, table, _ = cached()
    out, lengths = query.new_zeros(8, 4, 8), torch.tensor(LENGTHS, dtype=torch.int32)
    mask = torch.zeros(8, 8).half()
    unpad = facade._npu_flash_attention_unpad
    for call, text in (
        (lambda: unpad(query.float(), key, value, lengths, 0.25, 4, 2, out), "takes float16 and bfloat16"),
        (lambda: unpad(query, key, value, lengths, 0.25, 4, 3, out), "multiple of the 3"),
        (lambda: unpad(query, key, value, lengths + 1, 0.25, 4, 2, out), "beyond the tokens"),
        (lambda: unpad(query, key, value, lengths, 0.25, 4, 2, out[..., :4]), "but out"),
        (lambda: facade._npu_flash_attention(query, key, value, mask[:2], lengths, 0.25, 4, 2, out), "is smaller"),
        (
            lambda: facade._npu_flash_attention_v3(query, key, value, mask, lengths, 0.25, 4, 2, mask_type=2, out=out),
            "mask_type only supports MASK_TYPE_NORM_COMPRESS, but got: 2",
        ),
        (
            lambda: facade._npu_flash_attention_unpad_v2(
                query, key, value, lengths, 0.25, 4, 2, kernel_type=1, out=out
            ),
            "kernel_type only supports",
        ),
        (
            lambda: facade._npu_paged_attention_splitfuse_v2(
                query, keys, values, table, lengths, mask, lengths, 2, 4, 0.25, mask_type=3, out=out
            ),
            r"mask_type only supports MASK_TYPE_NORM_COMPRESS\(5\), but got: MASK_TYPE_SPEC\(3\)",
        ),
        (
            lambda: facade._npu_paged_attention(
                query[:2], keys, values, 2, 4, 0.25, table, lengths + 10, out
            ),
            "block_table has 2 blocks of 4 tokens",
        ),
        (
            lambda: facade.atb._npu_flash_attention_v2(
                query, key, value, LENGTHS, mask=mask, mask_type=6, num_heads=4, num_kv_heads=2, out=out
            ),
            "mask_type 6 is not simulated",
        ),
    ):  # fmt: skip
        with pytest.raises(RuntimeError, match=text):
            call()


@pytest.mark.parametrize("dtype", [HALF, WIDE])
def test_ring_mla(facade, dtype):
    tolerance = 2e-3 if dtype is HALF else 2e-2
    torch.manual_seed(1)
    nope, rope = torch.randn(8, 2, 128).to(dtype), torch.randn(8, 2, 64).to(dtype)
    keys = [torch.randn(13, 2, width).to(dtype) for width in (128, 64, 128)]
    mask = torch.full((512, 512), -10000.0 if dtype is HALF else 1.0, dtype=dtype).triu(1)
    seqlen = torch.tensor([LENGTHS, KEYS], dtype=torch.int32)
    given = {"qk_scale": 0.05, "mask_type": "mask_type_triu"}
    found, lse = facade.atb.npu_ring_mla(nope, rope, *keys, mask, seqlen, 2, 2, **given)
    query, key = torch.cat((nope, rope), -1), torch.cat(keys[:2], -1)
    for rows, columns in ((slice(0, 3), slice(0, 7)), (slice(3, 8), slice(7, 13))):
        hidden = torch.full((rows.stop - rows.start, columns.stop - columns.start), -torch.inf).triu(1)
        wanted, logarithm = reference(query[rows], key[columns], keys[2][columns], 0.05, hidden)
        close(found[rows], wanted, tolerance)
        close(lse[:, rows], logarithm.transpose(0, 1))
    earlier = {"pre_out": torch.randn(8, 2, 128).to(dtype), "prev_lse": torch.randn(2, 8) * 5}
    out = {"output": torch.empty_like(found), "softmax_lse": torch.empty_like(lse)}
    facade.atb.npu_ring_mla(
        nope, rope, *keys, mask, seqlen, 2, 2, calc_type="calc_type_default", **given, **earlier, **out
    )
    weights = torch.stack((earlier["prev_lse"], lse)).softmax(0).transpose(1, 2)[..., None]
    close(out["output"], earlier["pre_out"] * weights[0] + found.float() * weights[1], tolerance)
    close(out["softmax_lse"], torch.logaddexp(earlier["prev_lse"], lse))
    none = torch.tensor([LENGTHS, [0, 6]], dtype=torch.int32)
    first, logarithm = facade.atb.npu_ring_mla(nope, rope, *keys, mask, none, 2, 2, **given)
    assert not first[:3].any()
    assert not logarithm[:, :3].any()
    for changed, text in (
        ({"calc_type": "calc_type_default"}, "takes pre_out"),
        ({"mask_type": "causal"}, "mask_type causal"),
        ({"input_layout": "type_bnsd"}, "input_layout type_bnsd"),
    ):
        with pytest.raises(RuntimeError, match=text):
            facade.atb.npu_ring_mla(nope, rope, *keys, mask, seqlen, 2, 2, **changed)


def test_latent_attention(facade):
    torch.manual_seed(2)
    nope, rope = torch.randn(2, 4, 512).half(), torch.randn(2, 4, 64).half()
    latent, more = torch.randn(6, 4, 1, 512).half(), torch.randn(6, 4, 1, 64).half()
    table = torch.tensor([[5, 1], [0, 3]], dtype=torch.int32)
    call = facade.atb.npu_multi_head_latent_attention
    args = (nope, rope, latent, more, table, KEYS, 4, 0.03, 1)
    found, lse = call(*args, True, calc_type="calc_type_ring")
    for b in (0, 1):
        values, channels = (cache[table[b].long()].flatten(0, 1)[: KEYS[b]] for cache in (latent, more))
        query = torch.cat((nope, rope), -1)[b : b + 1]
        wanted, logarithm = reference(query, torch.cat((values, channels), -1), values, 0.03)
        close(found[b : b + 1], wanted)
        close(lse[b, :, 0], logarithm[0])
    assert call(*args).equal(found)
    assert call(*args, False)[1] is None
    out = torch.empty_like(found)
    assert call(*args, output=out) is out
    assert out.equal(found)
    nz = [cache.flatten(2).unflatten(2, (-1, 16)).transpose(1, 2).contiguous() for cache in (latent, more)]
    assert call(nope, rope, *nz, table, KEYS, 4, 0.03, 1, cache_mode="nzcache").equal(found)
    with pytest.raises(RuntimeError, match="not simulated"):
        call(*args, cache_mode="int8_nzcache")


def test_attention_update(facade):
    torch.manual_seed(4)
    query, key, value = torch.randn(1, 3, 8), torch.randn(9, 3, 8), torch.randn(9, 3, 16)
    whole, logarithm = reference(query, key, value, 0.3)
    parts = [reference(query, key[rows], value[rows], 0.3) for rows in (slice(0, 2), slice(2, 6), slice(6, 9))]
    lse, outs = [part[1][0].float() for part in parts], [part[0][0].half() for part in parts]
    found, total = facade.npu_attention_update(lse, outs, 1)
    close(found, whole[0])
    close(total, logarithm[0])
    assert found.dtype == HALF
    assert facade.npu_attention_update(lse, outs, 0)[1] is None
    none = torch.full((3,), torch.inf)
    close(facade.npu_attention_update([*lse, none], [*outs, outs[0]], 0)[0], whole[0])
    for args, text in (
        ((lse[:2], outs, 0), "2 lse and 3 local_out"),
        ((lse, outs, 2), "update_type 2"),
        (([x.half() for x in lse], outs, 0), "float32 and one dtype"),
        ((lse, [x[:, :4] for x in outs], 0), "multiples of 8"),
        (([x[:2] for x in lse], outs, 0), r"must be \[T\]"),
    ):
        with pytest.raises(RuntimeError, match=text):
            facade.npu_attention_update(*args)


def test_names_of_atb(facade):
    assert facade.atb.npu_ring_mla is torch.ops.atb.npu_ring_mla
    assert "npu_ring_mla" in dir(facade.atb)
    with pytest.raises(AttributeError):
        _ = facade.atb.npu_nothing

"""Rotary embeddings and the caches that they are written to, against loops over tokens.

Holds kv_rope_cache.py, rope.py and rotary.py in src/toprope/compat/torch_npu/operators.
"""

import numpy as np
import pytest
import torch

ops = torch.ops.npu


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def rotated(x, cos, sin, pairs):
    """Rotation by pairs of places: (a, b) to (a cos - b sin, b cos + a sin); `cos` and `sin` by place."""
    y = np.array(x, dtype=np.float64)
    for a, b in pairs:
        y[a] = x[a] * cos[a] - x[b] * sin[a]
        y[b] = x[b] * cos[b] + x[a] * sin[b]
    return y


def halves(width):
    return [(i, i + width // 2) for i in range(width // 2)]


def neighbours(width):
    return [(i, i + 1) for i in range(0, width, 2)]


def reordered(x):
    return np.concatenate((x[::2], x[1::2]))


def test_interleave_rope(facade):
    x = torch.randn(2, 3, 4, 64).half()
    for length in (1, 4):
        cos, sin = torch.randn(2, 1, length, 64).half(), torch.randn(2, 1, length, 64).half()
        found = facade.npu_interleave_rope(x, cos, sin)
        assert found.dtype == x.dtype
        for b, n, s in np.ndindex(2, 3, 4):
            angle = [t[b, 0, s % length].double().numpy() for t in (cos, sin)]
            expected = rotated(reordered(x[b, n, s].double().numpy()), *angle, halves(64))
            torch.testing.assert_close(found[b, n, s], torch.from_numpy(expected).half())


@pytest.mark.parametrize(
    ("x", "cos", "text"),
    [
        ((2, 3, 4, 32), (2, 1, 4, 32), "must be 64"),
        ((2, 3, 4, 64), (2, 3, 4, 64), "is expected"),
        ((2, 3, 4, 64), (2, 1, 2, 64), "is expected"),
        ((3, 4, 64), (1, 4, 64), "must have 4"),
    ],
)
def test_interleave_rope_refuses(facade, x, cos, text):
    with pytest.raises(RuntimeError, match=text):
        facade.npu_interleave_rope(torch.zeros(x).half(), torch.zeros(cos).half(), torch.zeros(cos).half())
    with pytest.raises(RuntimeError, match="float16 and bfloat16"):
        facade.npu_interleave_rope(torch.zeros(1, 1, 1, 64), torch.zeros(1, 1, 1, 64), torch.zeros(1, 1, 1, 64))


def test_apply_rotary_pos_emb_writes_its_arguments(facade):
    query, key = torch.randn(2, 3, 4, 64).half(), torch.randn(2, 3, 1, 64).half()
    cos, sin = torch.randn(2, 3, 1, 64).half(), torch.randn(2, 3, 1, 64).half()
    before = query.clone(), key.clone()
    found = facade.npu_apply_rotary_pos_emb(query, key, cos, sin)
    assert found[0] is query
    assert found[1] is key
    for x, old in zip(found, before, strict=True):
        for b, s, n in np.ndindex(*x.shape[:3]):
            angle = [t[b, s, 0].double().numpy() for t in (cos, sin)]
            expected = rotated(old[b, s, n].double().numpy(), *angle, halves(64))
            torch.testing.assert_close(x[b, s, n], torch.from_numpy(expected).half(), rtol=2e-3, atol=2e-3)
    flat = [t.flatten(0, 1) for t in (*before, cos, sin)]
    facade.npu_apply_rotary_pos_emb(*flat, layout="TND")
    assert flat[0].equal(query.flatten(0, 1))


def test_apply_rotary_pos_emb_refuses(facade):
    query, key, cos = torch.zeros(2, 3, 4, 64), torch.zeros(2, 3, 1, 64), torch.zeros(2, 3, 1, 64)
    for changed, text in (
        ({"rotary_mode": "whole"}, "should be half/quarter/interleave, but got whole"),
        ({"rotary_mode": "quarter"}, "Ascend 950"),
        ({"layout": "BNSD"}, "Ascend 950"),
        ({"layout": "TND"}, "has 3"),
        ({"layout": "BSH"}, "layout is"),
    ):
        with pytest.raises(RuntimeError, match=text):
            facade.npu_apply_rotary_pos_emb(query, key, cos, cos, **changed)
    with pytest.raises(RuntimeError, match="one dtype"):
        facade.npu_apply_rotary_pos_emb(query, key.half(), cos, cos)
    with pytest.raises(RuntimeError, match="do not fit"):
        facade.npu_apply_rotary_pos_emb(query, key[:, :2], cos, cos)
    with pytest.raises(RuntimeError, match="64 or 128"):
        facade.npu_apply_rotary_pos_emb(query[..., :32], key[..., :32], cos[..., :32], cos[..., :32])


@pytest.mark.parametrize(
    ("mode", "shape"),
    [("interleave", (1, 1, 4, 16)), ("half", (1, 1, 4, 16)), ("half", (2, 1, 4, 16)), ("half", (2, 3, 4, 16))],
)
def test_rotary_mul_backward(facade, mode, shape):
    leaves = [torch.randn(s).requires_grad_() for s in ((2, 3, 4, 16), shape, shape)]
    grad = torch.randn(2, 3, 4, 16)
    facade.npu_rotary_mul(*leaves, mode).backward(grad)
    for found, leaf in zip(ops.npu_rotary_mul_backward(grad, *leaves, mode), leaves, strict=True):
        torch.testing.assert_close(found, leaf.grad)
    plain = ops.npu_rotary_mul_backward(grad, *(leaf.detach() for leaf in leaves), mode)
    torch.testing.assert_close(plain[0], leaves[0].grad)
    assert not plain[1].any()
    with pytest.raises(RuntimeError, match="should be half or interleave, but got quarter"):
        ops.npu_rotary_mul_backward(grad, *leaves, "quarter")


@pytest.mark.parametrize("mode", ["half", "interleave"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_mrope_with_one_position(facade, mode, dtype):
    query, key, cache = (torch.randn(s).to(dtype) for s in ((3, 128), (3, 64), (5, 32)))
    positions = torch.tensor([4, 0, 2], dtype=torch.int32)
    found = facade.npu_mrope(positions, query, key, cache, 64, rotary_mode=mode, cache_mode="interleave")
    for new, old in zip(found, (query, key), strict=True):
        for t in range(3):
            cos, sin = cache[positions[t]].double().numpy().reshape(2, 16)
            angle = [np.tile(part, 2) if mode == "half" else np.repeat(part, 2) for part in (cos, sin)]
            pairs = halves(32) if mode == "half" else neighbours(32)
            olds, news = old[t].double().numpy().reshape(-1, 64), new[t].double().reshape(-1, 64)
            for h in range(olds.shape[0]):
                expected = np.concatenate((rotated(olds[h, :32], *angle, pairs), olds[h, 32:]))
                torch.testing.assert_close(news[h].to(dtype), torch.from_numpy(expected).to(dtype))


@pytest.mark.parametrize("cache_mode", ["default", "interleave"])
def test_mrope_with_sections(facade, cache_mode):
    sections = [16, 8, 8] if cache_mode == "default" else [11, 11, 10]
    query, cache = torch.randn(2, 64), torch.randn(9, 64)
    positions = torch.randint(0, 9, (3, 2))
    found, _ = facade.npu_mrope(positions, query, query, cache, 64, mrope_section=sections, cache_mode=cache_mode)
    for t in range(2):
        cos, sin = np.zeros(32), np.zeros(32)
        for i in range(32):
            if cache_mode == "default":
                row = 0 if i < 16 else 1 if i < 24 else 2
            else:
                row = i % 3 if i < 3 * sections[1] else 0
            cos[i], sin[i] = cache[positions[row, t], i], cache[positions[row, t], 32 + i]
        expected = rotated(query[t].double().numpy(), np.tile(cos, 2), np.tile(sin, 2), halves(64))
        torch.testing.assert_close(found[t], torch.from_numpy(expected).float())


def test_mrope_refuses(facade):
    query, cache, one = torch.zeros(2, 64), torch.zeros(4, 64), torch.zeros(2, dtype=torch.int64)
    three = torch.zeros(3, 2, dtype=torch.int64)
    for arguments, keywords, text in (
        ((one, query, query, cache, 64), {"rotary_mode": "interleaved"}, "rotary_mode only support half or interleave"),
        ((one, query, query, cache, 64), {"cache_mode": "other"}, "cache_mode only support default or interleave"),
        ((three, query, query, cache, 64), {}, "do not fit mrope_section"),
        ((three, query, query, cache, 64), {"mrope_section": [8, 8, 8]}, "sums to 24"),
        ((one, query, query, cache, 60), {}, "multiples of 16"),
        ((one[:1], query, query, cache, 64), {}, "1 positions"),
        ((one.float(), query, query, cache, 64), {}, "int32 and int64"),
        ((one, query, query.half(), cache, 64), {}, "one dtype"),
    ):
        with pytest.raises(RuntimeError, match=text):
            facade.npu_mrope(*arguments, **keywords)


@pytest.mark.parametrize("neox", [True, False])
def test_rotary_embedding_of_atb(facade, neox):
    query, key, cache = torch.randn(3, 64).half(), torch.randn(3, 1, 32).half(), torch.randn(5, 32)
    positions = torch.tensor([4, 0, 2])
    expected = facade.npu_mrope(
        positions, query, key.flatten(1), cache.half(), 32, rotary_mode="half" if neox else "interleave"
    )
    assert torch.ops.atb._npu_rotary_embedding(positions, query, key, 32, cache, neox) is None
    torch.testing.assert_close(query, expected[0])
    torch.testing.assert_close(key.flatten(1), expected[1])
    with pytest.raises(RuntimeError, match="is simulated"):
        torch.ops.atb._npu_rotary_embedding(positions, query, key, 64, cache, neox)


def normalised(x, gamma, epsilon=1e-5):
    x = x.double().numpy()
    return x / np.sqrt((x**2).mean() + epsilon) * gamma.double().numpy()


def kv_arguments(mode, length=3, batch=2, second=False):
    width, rank = (192, 192) if second else (576, 512)
    kv, gamma = torch.randn(batch, 1, length, width).bfloat16(), torch.randn(rank).bfloat16()
    cos, sin = torch.randn(batch, 1, length, 64).bfloat16(), torch.randn(batch, 1, length, 64).bfloat16()
    sizes = (192, 128) if second else (64, 512)
    size = 2
    if mode == "Norm":
        index = torch.tensor([[4, 0, 2], [1, 3, 0]])[:batch, :length]
        caches = [torch.full((batch, 1, 5, d), 9.0) for d in sizes]
    else:
        pages = -(-length // size)
        index = torch.arange(batch * pages) * size if "BLK" in mode else torch.tensor([7, 2, -1, 0, 5, 3])
        index = index.flip(0) if "BLK" in mode else index[: batch * length]
        caches = [torch.full((4, size, 1, d), 9.0) for d in sizes]
    return [kv, gamma, cos, sin, index, *(c.bfloat16() for c in caches)]


def laid(cache, mode):
    """Cache as [blocks, places, D], out of the layout of the mode."""
    if mode == "Norm":
        return cache[:, 0]
    blocks, size, _, width = cache.shape
    if not mode.endswith("NZ"):
        return cache[:, :, 0]
    part = 32 // cache.element_size()
    return cache.reshape(blocks, width // part, size, part).transpose(1, 2).reshape(blocks, size, width)


@pytest.mark.parametrize("mode", ["Norm", "PA", "PA_BNSD", "PA_NZ", "PA_BLK_BNSD", "PA_BLK_NZ"])
@pytest.mark.parametrize("quant", [False, True])
@pytest.mark.parametrize("second", [False, True])
def test_kv_rmsnorm_rope_cache(facade, mode, quant, second):
    arguments = kv_arguments(mode, second=second)
    kv, gamma, cos, sin, index, k_cache, ckv_cache = arguments
    keywords, scales = {"cache_mode": mode, "is_output_kv": True}, (1.0, 1.0)
    if second:
        keywords["v"] = torch.randn(2, 1, 3, 128).bfloat16()
    if quant:
        arguments[5], arguments[6] = k_cache, ckv_cache = k_cache.char(), ckv_cache.char()
        scales = torch.rand(k_cache.shape[3]) * 9, torch.rand(ckv_cache.shape[3]) * 9
        keywords |= {"k_rope_scale": scales[0], "c_kv_scale": scales[1]}
        scales = [scale.double().numpy() for scale in scales]
    expected = [laid(cache, mode).double().numpy().copy() for cache in (k_cache, ckv_cache)]
    found = facade.npu_kv_rmsnorm_rope_cache(*arguments, **keywords)
    assert found[0] is k_cache
    assert found[1] is ckv_cache
    size, pages = k_cache.shape[1], -(-3 // k_cache.shape[1])
    for b, s in np.ndindex(2, 3):
        row, angle = kv[b, 0, s], [t[b, 0, s].double().numpy() for t in (cos, sin)]
        if second:
            whole = normalised(row, gamma)
            key = np.concatenate((rotated(reordered(whole[:64]), *angle, halves(64)), whole[64:]))
            value = keywords["v"][b, 0, s].double().numpy()
        else:
            key, value = (
                rotated(reordered(row[512:].double().numpy()), *angle, halves(64)),
                normalised(row[:512], gamma),
            )
        if mode == "Norm":
            block, place = b, int(index[b, s])
        elif "BLK" in mode:
            block, place = int(index[b * pages + s // size]) // size, s % size
        else:
            slot = int(index[b * 3 + s])
            block, place = (slot // size, slot % size) if slot >= 0 else (-1, 0)
        for cache, values, scale in zip(expected, (key, value), scales, strict=True):
            if block >= 0:
                cache[block, place] = np.clip(np.round(values * scale), -128, 127) if quant else values
        if mode != "Norm":
            torch.testing.assert_close(found[2][b, 0, s], torch.from_numpy(key).bfloat16(), rtol=1e-2, atol=1e-2)
            torch.testing.assert_close(found[3][b, 0, s], torch.from_numpy(value).bfloat16(), rtol=1e-2, atol=1e-2)
    for cache, want in zip((k_cache, ckv_cache), expected, strict=True):
        close = torch.from_numpy(want).to(cache.dtype).double()
        torch.testing.assert_close(laid(cache, mode).double(), close, rtol=1e-2, atol=1.0 if quant else 1e-2)


def test_kv_rmsnorm_rope_cache_versions(facade):
    arguments = kv_arguments("PA")
    copies = [t.clone() for t in arguments]
    first = facade.npu_kv_rmsnorm_rope_cache(*arguments, cache_mode="PA", is_output_kv=True)
    functional = ops.npu_kv_rmsnorm_rope_cache_v2_functional(*copies, cache_mode="PA", is_output_kv=True)
    assert copies[5].equal(kv_arguments("PA")[5])
    second = ops.npu_kv_rmsnorm_rope_cache_v2(*copies, cache_mode="PA", is_output_kv=True)
    results = (first[2], first[3], first[0], first[1])
    for a, b, c in zip(results, functional, (*second, copies[5], copies[6]), strict=True):
        assert a.equal(b)
        assert a.equal(c)
    hidden = facade.npu_kv_rmsnorm_rope_cache(*arguments, cache_mode="PA")
    assert [tuple(t.shape) for t in hidden[2:]] == [(2, 1, 3, 64), (2, 1, 3, 512)]


def test_no_token_is_written(facade):
    arguments = kv_arguments("PA", length=1)
    arguments[4] = torch.tensor([-1, -1])
    facade.npu_kv_rmsnorm_rope_cache(*arguments, cache_mode="PA")
    assert (arguments[5] == 9).all()
    assert (arguments[6] == 9).all()


def test_kv_rmsnorm_rope_cache_refuses(facade):
    plain = kv_arguments("PA")
    for place, change, keywords, text in (
        (0, lambda t: t[0], {}, "4D tensor expected for input kv"),
        (1, lambda t: t.unsqueeze(0), {}, "1D tensor expected for input gamma"),
        (2, lambda t: t[0], {}, "4D tensor expected for input cos"),
        (0, lambda t: t.float(), {}, "one dtype"),
        (0, lambda t: t[..., :500], {}, "takes 576, 512 and 64"),
        (4, lambda t: t[:2], {}, "index has shape"),
        (4, lambda t: t.int(), {}, "int64"),
        (5, lambda t: t.float(), {}, "one dtype"),
        (5, lambda t: t, {"cache_mode": "NZ"}, "cache_mode is"),
        (5, lambda t: t, {"k_rope_offset": torch.zeros(64)}, "not supported yet"),
        (5, lambda t: t, {"k_rope_scale": torch.zeros(64)}, "must be given together"),
    ):
        arguments = list(plain)
        arguments[place] = change(arguments[place])
        with pytest.raises(RuntimeError, match=text):
            facade.npu_kv_rmsnorm_rope_cache(*arguments, **{"cache_mode": "PA"} | keywords)


@pytest.mark.parametrize("quant", [False, True])
def test_qkv_rms_norm_rope_cache(facade, quant):
    batch, length, nq, nk, nv, d = 2, 2, 2, 1, 1, 32
    qkv, q_gamma, k_gamma = torch.randn(4, 128).half(), torch.randn(d).half(), torch.randn(d).half()
    cos, sin = torch.randn(4, d).half(), torch.randn(4, d).half()
    index, part = torch.tensor([5, -1, 0, 3]), 32 if quant else 16
    q_out = torch.zeros(4, nq * d).half()
    caches = [torch.zeros(2, n * d // part, 4, part, dtype=torch.int8 if quant else torch.float16) for n in (nk, nv)]
    scales = (torch.rand(nk, d) + 0.1, torch.rand(nv, d) + 0.1) if quant else (None, None)
    found = ops.npu_qkv_rms_norm_rope_cache(
        qkv, q_gamma, k_gamma, cos, sin, index, q_out, *caches, [batch, length, nq + nk + nv, d], [nq, nk, nv],
        k_scale=scales[0], v_scale=scales[1], is_output_qkv=True,
    )  # fmt: skip
    for t in range(4):
        heads = qkv[t].reshape(4, d)
        angle = [a[t].double().numpy() for a in (cos, sin)]
        query = [rotated(normalised(heads[h], q_gamma, 1e-6), *angle, halves(d)) for h in range(nq)]
        key = rotated(normalised(heads[2], k_gamma, 1e-6), *angle, halves(d))
        value = heads[3].double().numpy()
        torch.testing.assert_close(q_out[t], torch.from_numpy(np.concatenate(query)).half(), rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(found[1][t], torch.from_numpy(key).half(), rtol=1e-3, atol=1e-3)
        assert found[2][t].equal(heads[3])
        if index[t] < 0:
            continue
        for cache, values, scale in zip(caches, (key, value), scales, strict=True):
            row = cache[index[t] // 4, :, index[t] % 4].flatten()
            if quant:
                values = np.clip(np.round(values / scale[0].double().numpy()), -128, 127)
            torch.testing.assert_close(row.double(), torch.from_numpy(values), rtol=1e-2, atol=1.0 if quant else 1e-2)
    none = ops.npu_qkv_rms_norm_rope_cache(
        qkv, q_gamma, k_gamma, cos, sin, index, q_out, *caches, [2, 2, 4, d], [2, 1, 1],
        k_scale=scales[0], v_scale=scales[1],
    )  # fmt: skip
    assert none == (None, None, None)
    with pytest.raises(RuntimeError, match="the size of head_nums must be 3"):
        ops.npu_qkv_rms_norm_rope_cache(qkv, q_gamma, k_gamma, cos, sin, index, q_out, *caches, [2, 2, 4, d], [2, 1])


@pytest.mark.parametrize("mode", ["contiguous", "page"])
@pytest.mark.parametrize("flat", [False, True])
def test_rope_quant_kvcache(facade, mode, flat):
    batch, length, d = (4, 1, 16) if flat else (2, 2, 16)
    x = torch.randn((4, 64) if flat else (2, 2, 64)).half()
    cos, sin = torch.randn(4, d).half(), torch.randn(4, d).half()
    caches = [torch.zeros(5, 3, 1, d, dtype=torch.int8) for _ in range(2)]
    scales = [torch.rand(d) / 50 + 0.01 for _ in range(2)]
    index = torch.tensor([4, 0, 7, 2] if mode == "page" else [1, 0, 1, 0][:batch], dtype=torch.int32)
    shape = (4, d) if flat else (2, 2, 1, d)
    q, k, v, *written = facade.npu_rope_quant_kvcache(
        x, cos.reshape(shape), sin.reshape(shape), *caches, index, *scales, [32, 16, 16],
        offset_k=torch.full((d,), 2.0), kv_output=True, cache_mode=mode,
    )  # fmt: skip
    assert written[0] is caches[0]
    assert q.shape == ((4, 2, d) if flat else (2, 2, 2, d))
    for t in range(4):
        heads = x.reshape(4, 4, d)[t].double().numpy()
        angle = cos[t].double().numpy(), sin[t].double().numpy()
        torch.testing.assert_close(
            q.reshape(4, 2, d)[t].double(),
            torch.from_numpy(np.stack([rotated(heads[h], *angle, halves(d)) for h in range(2)])),
            rtol=2e-3, atol=2e-3,
        )  # fmt: skip
        assert v.reshape(4, d)[t].equal(x.reshape(4, 4, d)[t, 3])
        if mode == "page":
            block, place = int(index[t]) // 3, int(index[t]) % 3
        else:
            block, place = t // length, int(index[t // length]) + t % length
        key = k.reshape(4, d)[t].double().numpy() / scales[0].double().numpy() + 2
        value = heads[3] / scales[1].double().numpy()
        for cache, codes in zip(caches, (key, value), strict=True):
            torch.testing.assert_close(
                cache[block, place, 0].double(), torch.from_numpy(np.clip(np.round(codes), -128, 127)), rtol=0, atol=1
            )
    with pytest.raises(RuntimeError, match="4D tensor expected for input cache"):
        facade.npu_rope_quant_kvcache(x, cos, sin, caches[0], caches[1][0], index, *scales, [32, 16, 16])
    with pytest.raises(RuntimeError, match="do not add up"):
        facade.npu_rope_quant_kvcache(x, cos, sin, *caches, index, *scales, [32, 16, 32])

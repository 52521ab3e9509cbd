"""Prolog of latent attention against its steps in float64.

Holds mla_prolog.py in src/toprope/compat/torch_npu/operators.
"""

import pytest
import torch

ops = torch.ops.npu
HIDDEN, RANK, HEADS, HEAD = 1024, 1536, 2, 128


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def inputs(lead=(2, 2), hidden=HIDDEN, quant="none", cache=torch.bfloat16, mode="PA_BSND"):
    """Arguments by name; quant is "none", "part" (the second weight of the query) or "full"."""
    full = quant == "full"

    def weight(*shape, codes):
        if codes:
            return torch.randint(-20, 20, shape, dtype=torch.int8)
        return (torch.randn(shape) / shape[0] ** 0.5).bfloat16()

    width = HEADS * (HEAD + 64)
    given = {
        "token_x": weight(*lead, hidden, codes=True) if full else torch.randn(*lead, hidden).bfloat16(),
        "weight_dq": weight(hidden, RANK, codes=full),
        "weight_uq_qr": weight(RANK, width, codes=quant != "none"),
        "weight_uk": weight(HEADS, HEAD, 512, codes=False),
        "weight_dkv_kr": weight(hidden, 576, codes=full),
        "rmsnorm_gamma_cq": torch.rand(RANK).bfloat16(),
        "rmsnorm_gamma_ckv": torch.rand(512).bfloat16(),
        "rope_sin": torch.randn(*lead, 64).bfloat16(),
        "rope_cos": torch.randn(*lead, 64).bfloat16(),
    }
    shape = (4, 16) if mode.startswith("PA") else lead
    rope_cache = torch.int8 if cache == torch.int8 and not full else torch.bfloat16
    given |= {
        "kv_cache": torch.zeros(*shape, 1, 512, dtype=cache),
        "kr_cache": torch.zeros(*shape, 1, 64, dtype=rope_cache),
    }
    if quant != "none":
        given["dequant_scale_w_uq_qr"] = torch.rand(1, width) / 500
        given["smooth_scales_cq"] = torch.rand(1, RANK) + 0.5
    if full:
        given["dequant_scale_x"] = torch.rand(given["token_x"][..., 0].numel(), 1) / 20
        given["dequant_scale_w_dq"] = torch.rand(1, RANK) / 20
        given["dequant_scale_w_dkv_kr"] = torch.rand(1, 576) / 20
    if cache == torch.int8:
        given["quant_scale_ckv"] = torch.full((1, 512), 30.0) if full else torch.rand(1, 512) * 60
    if rope_cache == torch.int8:
        given["quant_scale_ckr"] = torch.rand(1, 64) * 60
    return given


def wide(x):
    return x.double()


def rotated(x, cos, sin):
    even, odd = x[..., ::2], x[..., 1::2]
    half = x.shape[-1] // 2
    first = even * cos[..., :half] - odd * sin[..., :half]
    return torch.cat((first, odd * cos[..., half:] + even * sin[..., half:]), -1)


def normalised(x, gamma):
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * wide(gamma)


def reference(given):
    """query, query_rope, latent key and rotated key of each token, before any quantisation of results."""
    x = wide(given["token_x"]).flatten(0, -2)
    scale = wide(given["dequant_scale_x"]) if "dequant_scale_x" in given else 1.0
    cos, sin = wide(given["rope_cos"]).flatten(0, -2), wide(given["rope_sin"]).flatten(0, -2)
    down = x @ wide(given["weight_dq"]) * scale * given.get("dequant_scale_w_dq", 1.0)
    norm = normalised(down, given["rmsnorm_gamma_cq"])
    if "dequant_scale_w_uq_qr" in given:
        smooth = norm * given["smooth_scales_cq"]
        step = smooth.abs().amax(-1, keepdim=True) / 127
        up = (smooth / step).round() @ wide(given["weight_uq_qr"]) * step * given["dequant_scale_w_uq_qr"]
    else:
        up = norm @ wide(given["weight_uq_qr"])
    up = up.reshape(-1, HEADS, HEAD + 64)
    query = torch.stack([up[:, h, :HEAD] @ wide(given["weight_uk"][h]) for h in range(HEADS)], 1)
    rope = rotated(up[..., HEAD:], cos.unsqueeze(1), sin.unsqueeze(1))
    key = x @ wide(given["weight_dkv_kr"]) * scale * given.get("dequant_scale_w_dkv_kr", 1.0)
    return query, rope, normalised(key[:, :512], given["rmsnorm_gamma_ckv"]), rotated(key[:, 512:], cos, sin)


def near(found, expected, tolerance=0.03):
    found, expected = found.double().reshape(expected.shape), expected.double()
    assert (found - expected).norm() <= tolerance * expected.norm()


def rows(cache, index, mode):
    """Rows of a paged cache at places counted over all blocks."""
    if mode.endswith("NZ"):
        part = 32 // cache.element_size()
        blocks, size, _, width = cache.shape
        cache = cache.reshape(blocks, width // part, size, part).transpose(1, 2)
    return cache.reshape(cache.shape[0] * cache.shape[1], -1)[index.flatten()]


@pytest.mark.parametrize("mode", ["PA_BSND", "PA_NZ"])
@pytest.mark.parametrize(
    ("quant", "cache"),
    [
        ("none", torch.bfloat16),
        ("part", torch.bfloat16),
        ("part", torch.int8),
        ("full", torch.bfloat16),
        ("full", torch.int8),
    ],
)
@pytest.mark.parametrize("lead", [(2, 2), (3,)])
def test_values(facade, mode, quant, cache, lead):
    given = inputs(lead, quant=quant, cache=cache)
    index = torch.randperm(64)[: given["token_x"][..., 0].numel()].reshape(lead)
    query, rope, key, turned = reference(given)
    cache_mode = 0 if cache != torch.int8 else 1 if quant == "full" else 2
    whole = quant == "full" and cache == torch.int8
    found = ops.npu_mla_prolog_v3(
        **given, cache_index=index, cache_mode=mode, weight_quant_mode=("none", "part", "full").index(quant),
        kv_cache_quant_mode=cache_mode, query_quant_mode=int(whole), query_norm_flag=True,
    )  # fmt: skip
    if whole:
        step = found[2].double()
        assert (found[0].dtype, found[2].shape) == (torch.int8, (query.shape[0], HEADS, 1))
        near(step, query.abs().amax(-1, keepdim=True) / 127)
        near(found[0].double().reshape(query.shape) * step, query)
        near(found[1], rope * 30 / step)
    else:
        assert found[0].dtype == torch.bfloat16
        assert found[2] is None
        near(found[0], query)
        near(found[1], rope)
    assert found[0].shape == (*lead, HEADS, 512)
    assert found[1].shape == (*lead, HEADS, 64)
    assert (found[3].dtype, found[3].shape) == (given["weight_uq_qr"].dtype, (*lead, RANK))
    assert (found[4] is None) == (quant == "none")
    for name, values, scale in (("kv_cache", key, "quant_scale_ckv"), ("kr_cache", turned, "quant_scale_ckr")):
        if given[name].dtype == torch.int8:
            values = (values * given[scale]).round().clamp(-128, 127)
        near(rows(given[name], index, mode), values)
        assert given[name].flatten(1).count_nonzero() <= values.numel()


@pytest.mark.parametrize("version", [1, 2])
def test_earlier_versions(facade, version):
    given = inputs((2, 1), hidden=6144)
    index = torch.tensor([[5], [40]])
    copies = {name: tensor.clone() for name, tensor in given.items()}
    function = facade.npu_mla_prolog if version == 1 else facade.npu_mla_prolog_v2
    found = function(**given, cache_index=index)
    third = ops.npu_mla_prolog_v3_functional(**copies, cache_index=index)
    assert found[2] is given["kv_cache"]
    assert found[3] is given["kr_cache"]
    assert not copies["kv_cache"].any()
    for one, other in zip(found[:4], (third[0], third[1], third[5], third[6]), strict=True):
        assert one.equal(other)
    if version == 2:
        assert found[4].shape == (1,)


@pytest.mark.parametrize("mode", ["PA_BLK_BSND", "PA_BLK_NZ"])
def test_pages(facade, mode):
    given = inputs((2, 18), mode=mode)
    key = reference(given)[2]
    pages = torch.tensor([[3, 0], [1, 2]])
    ops.npu_mla_prolog_v3(**given, cache_index=pages, cache_mode=mode)
    places = torch.tensor([[int(pages[b, s // 16]) * 16 + s % 16 for s in range(18)] for b in range(2)])
    near(rows(given["kv_cache"], places, mode), key)

    flat = {name: t.flatten(0, 1) if name in ("token_x", "rope_sin", "rope_cos") else t for name, t in given.items()}
    flat |= {"kv_cache": torch.zeros_like(given["kv_cache"]), "kr_cache": torch.zeros_like(given["kr_cache"])}
    ends = torch.tensor([17, 36], dtype=torch.int32)
    ops.npu_mla_prolog_v3(**flat, cache_index=pages.flatten(), actual_seq_len=ends, cache_mode=mode)
    places = [int(pages.flatten()[t // 16]) * 16 + t % 16 for t in range(17)]
    places += [int(pages.flatten()[2 + t // 16]) * 16 + t % 16 for t in range(16)]
    near(rows(flat["kv_cache"], torch.tensor(places), mode), key[:33])


@pytest.mark.parametrize(("mode", "lead"), [("BSND", (2, 2)), ("TND", (3,))])
def test_caches_without_pages(facade, mode, lead):
    given = inputs(lead, mode=mode)
    _, _, key, turned = reference(given)
    found = ops.npu_mla_prolog_v3(**given, cache_mode=mode, kc_scale=2.0, qc_qr_scale=0.5)
    near(given["kv_cache"], 2 * key)
    near(given["kr_cache"], turned)
    near(found[0], reference(given)[0] / 2)
    assert found[2:] == (None, None, None)


def test_no_tokens(facade):
    given = inputs((0,))
    found = ops.npu_mla_prolog_v3(**given, cache_index=torch.zeros(0, dtype=torch.int64))
    assert found[0].shape == (0, HEADS, 512)


@pytest.mark.parametrize(
    ("change", "keywords", "text"),
    [
        ({"token_x": lambda t: t[0, 0]}, {}, "token_x dim num should be 2 or 3, but the actual value is 1"),
        ({"weight_uk": lambda t: t[0]}, {}, "weight_uk dim num should be 3, but the actual value is 2"),
        ({"rope_sin": lambda t: t[0]}, {}, "rope_sin dim num should be 3, but the actual value is 2"),
        ({"rope_cos": lambda t: t[..., :32]}, {}, "rope_cos has shape"),
        ({"rope_cos": lambda t: t.float()}, {}, "rope_cos is torch.float32"),
        ({"weight_dq": lambda t: t[:, :100]}, {}, "weight_uq_qr has shape"),
        ({"token_x": lambda t: t.char()}, {"weight_quant_mode": 0}, "do not fit weight_quant_mode 0"),
        ({"kv_cache": lambda t: t[..., :64]}, {}, "kv_cache has shape"),
        ({}, {"cache_index": torch.zeros(2, dtype=torch.int64)}, "cache_index has shape"),
        ({}, {"cache_index": None}, "cache_index is needed"),
        ({}, {"cache_mode": "TND"}, "cache_mode is 'TND'"),
        ({}, {"weight_quant_mode": 3}, "When weight_quant_mode is 3, not support on this soc version"),
        ({}, {"weight_quant_mode": 4}, "not simulated"),
        ({}, {"kv_cache_quant_mode": 3}, "not simulated"),
        ({}, {"query_quant_mode": 1}, "do not fit each other"),
    ],
)
def test_refusals(facade, change, keywords, text):
    given = inputs((2, 1))
    for name, function in change.items():
        given[name] = function(given[name])
    with pytest.raises(RuntimeError, match=text):
        ops.npu_mla_prolog_v3(**given, **{"cache_index": torch.zeros(2, 1, dtype=torch.int64)} | keywords)

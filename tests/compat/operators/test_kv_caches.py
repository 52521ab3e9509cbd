"""Operators of KV caches: writing, reading, indexed updates and the step of a decoding loop.

Holds indexed_update.py and kv_cache_transfer.py in src/toprope/compat/torch_npu/operators.

Held against plain indexing of tensors.
"""

import pytest
import torch

HALF = torch.float16


def written(tokens, cache, slots, nz=False):
    cache = cache.clone()
    for token, slot in zip(tokens, slots.tolist(), strict=True):
        if slot < 0:
            continue
        size = cache.shape[2 if nz else 1]
        block, offset = divmod(slot, size)
        if nz:
            cache[block, :, offset] = token.reshape(cache.shape[1], cache.shape[3])
        else:
            cache[block, offset] = token
    return cache


@pytest.mark.parametrize("nz", [False, True])
def test_scatter(facade, nz):
    key, value = torch.randn(5, 2, 32).half(), torch.randn(5, 2, 48).half()
    slots = torch.tensor([7, 0, -1, 13, 22], dtype=torch.int32)
    shapes = [(6, 2 * width // 16, 4, 16) if nz else (6, 4, 2, width) for width in (32, 48)]
    caches = [torch.randn(shape).half() for shape in shapes]
    wanted = [written(t, c, slots, nz) for t, c in zip((key, value), caches, strict=True)]
    mode = "PA_NZ" if nz else "Norm"
    copies = facade.npu_scatter_pa_kv_cache_functional(key, value, *caches, slots, cache_mode=mode)
    assert all(a.equal(b) for a, b in zip(copies, wanted, strict=True))
    assert not caches[0].equal(wanted[0])
    kept = [c.clone() for c in caches]
    assert facade.npu_scatter_pa_kv_cache(key, value, *kept, slots, cache_mode=mode) is None
    assert all(a.equal(b) for a, b in zip(kept, wanted, strict=True))
    assert facade._npu_reshape_and_cache(key, value, *caches, slots) is None
    assert all(a.equal(b) for a, b in zip(caches, wanted, strict=True))


def test_scatter_of_keys_alone(facade):
    key, cache = torch.randn(3, 2, 16).half(), torch.zeros(4, 4, 2, 16).half()
    slots = torch.tensor([1, 15, 6])
    wanted = written(key, cache, slots)
    found = cache.clone()
    assert facade.npu_scatter_pa_cache(key, slots, key_cache=found) is not None
    assert found.equal(wanted)
    facade._npu_reshape_and_cache_siso(key, cache, slots.int())
    assert cache.equal(wanted)


def test_scatter_of_compressed_heads(facade):
    key = torch.randn(2, 5, 2, 16).half()
    caches = [torch.zeros(6, 4, 1, 16).half() for _ in range(2)]
    slots = torch.tensor([[0, 5], [10, 16]])
    left_out = torch.tensor([[2, 0], [1, 4]])
    lengths = torch.tensor([5, 4])
    facade.npu_scatter_pa_kv_cache(
        key, key, *caches, slots, compress_lens=left_out, seq_lens=lengths, cache_mode="Norm"
    )
    flat = torch.zeros(24, 16).half()
    for b in range(2):
        for head in range(2):
            for place in range(int(lengths[b] - left_out[b, head])):
                flat[slots[b, head] + place] = key[b, place, head]
    assert all(cache.reshape(24, 16).equal(flat) for cache in caches)


def test_scatter_refuses(facade):
    key, cache = torch.zeros(3, 2, 16).half(), torch.zeros(4, 4, 2, 16).half()
    slots = torch.zeros(3, dtype=torch.int32)
    for args, given, text in (
        ((key, key, cache, cache, slots.float()), {}, "int32 and int64"),
        ((key, key, cache.float(), cache.float(), slots), {}, "one dtype"),
        ((key, key, cache, cache, slots), {"cache_mode": "ND"}, "cache_mode ND"),
        ((key[..., :8], key[..., :8], cache, cache, slots), {"cache_mode": "Norm"}, "holds"),
        ((key, key, cache, cache, slots.reshape(3, 1)), {"cache_mode": "Norm"}, "1 dimension"),
        ((key[:2], key, cache, cache, slots), {"cache_mode": "Norm"}, "3 slots for 2 tokens"),
        ((key[None], key[None], cache, cache, slots), {"cache_mode": "Norm"}, "compress_lens and seq_lens"),
        ((key, key, cache, cache, slots), {"seq_lens": slots}, "not simulated"),
    ):
        with pytest.raises(RuntimeError, match=text):
            facade.npu_scatter_pa_kv_cache(*args, **given)


@pytest.mark.parametrize("nz", [False, True])
@pytest.mark.parametrize("summed", [False, True])
def test_gather(facade, nz, summed):
    plain = torch.randn(6, 4, 2, 32).half()
    cache = plain.flatten(2).unflatten(2, (-1, 16)).transpose(1, 2).contiguous() if nz else plain
    table = torch.tensor([[5, 1, 9], [0, 3, 2]], dtype=torch.int32)
    lengths, starts = [10, 6], [0, 5]
    wanted = []
    for b, length in enumerate(lengths):
        for j in range(length):
            column = starts[b] // 4 + j // 4
            block = int(table[b, column]) if column < 3 else -1
            wanted.append(plain[block, j % 4] if 0 <= block < 6 else torch.zeros(2, 32).half())
    given = torch.tensor([0, 10, 16] if summed else lengths, dtype=torch.int32)
    more = {"seq_offset": torch.tensor(starts, dtype=torch.int32), "is_seq_lens_cumsum": summed}
    out = torch.full((18, 2, 32), 7.0).half()
    copies = facade.npu_gather_pa_kv_cache_functional(cache, cache, table, given, out, out, **more)
    assert copies[0][:16].equal(torch.stack(wanted))
    assert (copies[0][16:] == 7).all()
    assert (out == 7).all()
    facade.npu_gather_pa_kv_cache(cache, cache, table, given, out, out.clone(), **more)
    assert out.equal(copies[1])


def test_paged_cache_load(facade):
    keys, values = torch.randn(6, 4, 1, 32).half(), torch.randn(6, 4, 1, 16).half()
    table = torch.tensor([[5, 1], [0, 3]], dtype=torch.int32)
    load = facade.atb.npu_paged_cache_load
    found = load(keys, values, table, torch.tensor([3, 7], dtype=torch.int32))
    assert found[0].equal(torch.cat((keys[5, :3], keys[0], keys[3, :3])))
    assert found[1].equal(torch.cat((values[5, :3], values[0], values[3, :3])))
    out = [torch.empty_like(x) for x in found]
    load(keys, values, table, torch.tensor([0, 3, 10], dtype=torch.int32), cumsum=True, key=out[0], value=out[1])
    assert out[0].equal(found[0])
    assert load(keys, values, table, torch.tensor([0, 0], dtype=torch.int32))[0].shape == (0, 1, 32)
    with pytest.raises(RuntimeError, match="negative value"):
        load(keys, values, table, torch.tensor([-1, 2], dtype=torch.int32))


@pytest.mark.parametrize("axis", [1, -2, -1, 3])
def test_scatter_update(facade, axis):
    data = torch.randn(2, 3, 4, 5)
    places = torch.tensor([1, 0], dtype=torch.int32)
    shape = [2, 3, 4, 5]
    shape[axis] = 2
    updates = torch.randn(shape)
    wanted = data.clone()
    for b in range(2):
        start = int(places[b])
        wanted[b].narrow(axis % 4 - 1, start, 2).copy_(updates[b])
    assert facade.scatter_update(data, places, updates, axis).equal(wanted)
    turned = data.transpose(2, 3).contiguous().transpose(2, 3)
    assert facade.scatter_update_(turned, places, updates, axis) is turned
    assert turned.equal(wanted)
    assert not data.equal(wanted)


def test_scatter_nd_update(facade):
    data, places = torch.randn(4, 5, 6).half(), torch.tensor([[3, 2], [0, 4], [1, 1]])
    updates = torch.randn(3, 6).half()
    wanted = data.clone()
    for place, update in zip(places, updates, strict=True):
        wanted[place[0], place[1]] = update
    assert facade.npu_scatter_nd_update(data, places, updates).equal(wanted)
    assert facade.npu_scatter_nd_update_(data, places.int(), updates) is data
    assert data.equal(wanted)


def test_updates_refuse(facade):
    data, places = torch.zeros(2, 3, 4), torch.tensor([0, 1])
    for call, args, text in (
        (facade.scatter_update, (data, places.float(), data, 1), "int32 and int64"),
        (facade.scatter_update, (data, places, data.half(), 1), "one dtype"),
        (facade.scatter_update, (data, places, data, 0), "axis 0"),
        (facade.scatter_update, (data, places, data[0], 1), "2 to 8 alike"),
        (facade.scatter_update, (data, places[:1], data[:, :1], 1), "1 indices for 2 updates"),
        (facade.npu_scatter_nd_update, (data, places, data), "do not fit"),
        (facade.npu_scatter_nd_update, (data, places[None], data), "take"),
    ):
        with pytest.raises(RuntimeError, match=text):
            call(*args)


def test_advance_step(facade):
    tokens, positions, slots = (torch.full((4,), 9) for _ in range(3))
    lengths, table = torch.tensor([3, 8, 5, 6]), torch.arange(12).reshape(4, 3)
    sampled = torch.tensor([[70], [80]])
    facade.npu_advance_step_flashattn(tokens, sampled, positions, lengths, slots, table, 4, 2, 4)
    assert tokens.tolist() == [70, 80, 0, 9]
    assert positions.tolist() == [3, 8, 0, 9]
    assert lengths.tolist() == [4, 9, 5, 6]
    assert slots.tolist() == [0 * 4 + 3, (2 + 3) * 4 + 0, -1, 9]
    with pytest.raises(RuntimeError, match="must be more than num_queries"):
        facade.npu_advance_step_flashattn(tokens, sampled, positions, lengths, slots, table, 4, 4, 4)
    with pytest.raises(RuntimeError, match="takes int64"):
        facade.npu_advance_step_flashattn(tokens.int(), sampled, positions, lengths, slots, table, 4, 2, 4)


def test_advance_step_with_drafted_tokens(facade):
    positions = torch.tensor([4, 5, 6, 2, 3, 4])
    rest = [torch.zeros(6, dtype=torch.int64) for _ in range(3)]
    sampled = torch.tensor([[11, 12, -1], [21, 22, 23]])
    accepted, drafted = torch.tensor([1, 2]), torch.tensor([[31, 32], [41, 42]])
    table = torch.arange(8).reshape(2, 4)
    tokens, lengths, slots = rest
    facade.npu_advance_step_flashattn(
        tokens, sampled, positions, lengths, slots, table, 2, 2, 4, spec_token=drafted, accepted_num=accepted
    )
    assert tokens.tolist() == [12, 31, 32, 23, 41, 42]
    assert positions.tolist() == [6, 7, 8, 5, 6, 7]
    assert lengths.tolist() == [7, 8, 9, 6, 7, 8]
    assert slots.tolist() == [6, 7, 8, 4 * 4 + 5, 4 * 4 + 6, 4 * 4 + 7]

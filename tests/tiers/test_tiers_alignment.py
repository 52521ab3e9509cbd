"""Alignment of weights in memory (`store.alignment`): never one with which an operator would give other bits."""

import pytest
import torch
from torch.nn import functional

from toprope.tiers.store import alignment

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.complex64]


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_allowed_gives_the_bits_of_torchs_own_place(dtype):
    allowed = alignment.needed(dtype)
    assert allowed in (8, 16, 32, 64)
    generator = torch.Generator().manual_seed(5)
    for rows, columns in [(17, 5), (511, 513), (256, 2048)]:
        weight = torch.randn(rows, columns, generator=generator).to(dtype)
        here = alignment._placed(weight, 0)
        assert here.data_ptr() % 64 == 0
        for offset in range(allowed, 64, allowed):
            there = alignment._placed(weight, offset)
            assert there.data_ptr() % 64 == offset
            for count in (1, 3, 16, 65):
                x = torch.randn(count, columns, generator=generator).to(dtype)
                assert torch.equal(functional.linear(x, here), functional.linear(x, there))


def test_a_place_that_changes_bits_is_not_allowed(monkeypatch):
    wrong = {8, 24, 40, 56}
    monkeypatch.setattr(alignment, "_same", lambda dtype, offset: offset not in wrong)
    assert alignment.needed.__wrapped__(torch.float32) == 16
    wrong.add(32)
    assert alignment.needed.__wrapped__(torch.float32) == 64
    wrong.clear()
    assert alignment.needed.__wrapped__(torch.float32) == 8


def test_what_cannot_be_measured_lies_where_torch_would_put_it(monkeypatch):
    def refused(dtype, offset):
        raise RuntimeError("not implemented for this dtype")

    monkeypatch.setattr(alignment, "_same", refused)
    assert alignment.needed.__wrapped__(torch.float8_e4m3fn) == alignment.TORCHS
    assert alignment.needed(torch.int8) == 8


def test_measuring_leaves_torchs_seed_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    alignment.needed.__wrapped__(torch.bfloat16)
    assert torch.equal(torch.get_rng_state(), before)

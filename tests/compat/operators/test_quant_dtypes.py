"""Dtypes that only the card has: their numbers, casts, packed weights and lossless compression.

Holds hans.py, int4.py and low_precision.py in src/toprope/compat/torch_npu/operators.

Held against the vendor's numbers (torch_npu.hifloat8 and others) and all values of a dtype.
"""

import math

import pytest
import torch

from toprope.compat.torch_npu import dtype_numbers
from toprope.compat.torch_npu.operators.int4 import pack_int4, unpack_int4
from toprope.compat.torch_npu.operators.low_precision import hifloat8_values


def test_numbers(facade):
    names = ("int4", "hifloat8", "float8_e5m2", "float8_e4m3fn", "float8_e8m0fnu", "float4_e2m1fn_x2")
    assert [getattr(facade, name) for name in names] == [285, 290, 291, 292, 293, 296]
    assert (facade.float32, facade.bfloat16, facade.float4_e1m2fn_x2) == (256, 283, 297)
    assert "hifloat8" in dir(facade)
    assert dtype_numbers.card_dtype(23) == dtype_numbers.CardDtype.float8_e5m2
    assert dtype_numbers.card_dtype(291) == dtype_numbers.CardDtype.float8_e5m2
    assert dtype_numbers.card_dtype(12) is None
    assert dtype_numbers.card_dtype(300) is None
    assert dtype_numbers.dtype_text(290) == "torch_npu.hifloat8"
    with pytest.raises(KeyError):
        dtype_numbers.kept_dtype(dtype_numbers.CardDtype.uint1)


def hifloat8():
    """Positive values of HiFloat8 by code, from its definition: sign, dot, exponent and mantissa."""
    values = {0: 0.0} | {code: 2.0 ** (code - 23) for code in range(1, 8)}
    fields = (("0001", 0, 3), ("001", 1, 3), ("01", 2, 3), ("10", 3, 2), ("11", 4, 1))
    for dot, width, bits in fields:
        for exponent in range(1 << width):
            text = f"{exponent:0{width}b}" if width else ""
            size = int("1" + text[1:], 2) if width else 0
            power = -size if text[:1] == "1" else size
            for mantissa in range(1 << bits):
                code = int(dot + text + f"{mantissa:0{bits}b}", 2)
                values[code] = math.ldexp(1 + mantissa / (1 << bits), power)
    values[0x6F] = math.inf
    return values


def test_hifloat8_codes():
    expected = hifloat8()
    assert sorted(expected) == list(range(128))
    found = hifloat8_values(torch.arange(256, dtype=torch.uint8)).tolist()
    assert found[:128] == [expected[code] for code in range(128)]
    assert found[129:] == [-expected[code] for code in range(1, 128)]
    assert math.isnan(found[128])


def test_a_cast_to_hifloat8_takes_the_nearest(facade):
    values = {code: value for code, value in hifloat8().items() if math.isfinite(value)}
    x = torch.cat((torch.randn(200), torch.randn(200) * 1e4, torch.randn(200) * 1e-5, torch.tensor([0.0, 1e6, 1e-9])))
    codes = facade.npu_dtype_cast(x, facade.hifloat8)
    assert codes.dtype == torch.uint8
    for value, code in zip(x.tolist(), codes.tolist(), strict=True):
        # of two that are equally near, the larger one
        best = min(values.values(), key=lambda known: (abs(known - min(abs(value), 32768.0)), -known))
        assert values[code & 127] == best
        assert code < 128 or value < 0
    back = facade.npu_dtype_cast(codes, torch.bfloat16, facade.hifloat8)
    assert torch.equal(facade.npu_dtype_cast(back, facade.hifloat8), codes)


def test_a_cast_to_four_bits(facade):
    x = torch.tensor([[0.0, 0.6, -5.0, 100.0]])
    codes = facade.npu_dtype_cast(x, facade.float4_e2m1fn_x2)
    assert codes.tolist() == [[1 << 4, 14 | 7 << 4]]
    assert facade.npu_dtype_cast(codes, torch.float32, facade.float4_e2m1fn_x2).tolist() == [[0.0, 0.5, -4.0, 6.0]]
    whole = torch.tensor([1, 2, 3, 4], dtype=torch.int32)
    assert facade.npu_dtype_cast(whole, facade.int4, torch.int32).tolist() == [33, 67]
    with pytest.raises(RuntimeError, match="must be divisible by 2"):
        facade.npu_dtype_cast(whole[:3], facade.int4)
    with pytest.raises(RuntimeError, match=r"cannot be read as torch_npu\.float16"):
        facade.npu_dtype_cast(whole, torch.float32, facade.float16)
    with pytest.raises(RuntimeError, match="dtype number 300"):
        facade.npu_dtype_cast(whole, 300)
    with pytest.raises(RuntimeError, match="float6_e3m2 is not simulated"):
        facade.npu_dtype_cast(whole, facade.float6_e3m2)


def test_casts_of_torch_dtypes(facade):
    x = torch.randn(3, 4, requires_grad=True)
    for cast in (facade.npu_dtype_cast, torch.ops.npu._npu_dtype_cast):
        y = cast(x, torch.float16)
        assert y.dtype == torch.float16
        (gradient,) = torch.autograd.grad(y.sum(), x)
        assert torch.equal(gradient, torch.ones(3, 4))
        same = cast(x.detach(), torch.float32)
        assert same.data_ptr() != x.data_ptr()
    assert facade.npu_dtype_cast(x, facade.bfloat16).dtype == torch.bfloat16
    kept = torch.zeros(3, 4, dtype=torch.float16)
    assert torch.ops.npu.npu_dtype_cast_(kept, x.detach()) is kept
    assert torch.equal(kept, x.detach().half())
    assert torch.ops.npu.npu_dtype_cast_backward(kept, torch.float32).dtype == torch.float32


def test_pack_and_unpack():
    values = torch.randint(-8, 8, (2, 3, 16), dtype=torch.int32)
    packed = pack_int4(values)
    assert packed.shape == (2, 3, 2)
    assert torch.equal(unpack_int4(packed), values.to(torch.int8))
    assert torch.equal(unpack_int4(packed.view(torch.int8)), values.to(torch.int8))
    assert packed[0, 0, 0].item() & 15 == values[0, 0, 0].item() & 15


def test_weights_of_four_bits(facade):
    weight = torch.tensor([[0.5, -6.0, 5.0, 0.0, -0.0, 1.0, 2.0, -3.0]])
    with pytest.raises(RuntimeError, match="expected scalar type Int but found Float"):
        facade.npu_convert_weight_to_int4pack(weight)
    whole = torch.randint(-8, 8, (4, 16), dtype=torch.int32)
    assert torch.equal(facade.npu_convert_weight_to_int4pack(whole), pack_int4(whole))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("room", [0.25, 1.0])
def test_compression_loses_nothing(facade, dtype, room):
    x = torch.randn(64, 512).to(dtype)
    x[0, 0], x[0, 1], x[0, 2] = float("inf"), -0.0, -1e-7
    size = x.element_size()
    pdf = torch.zeros(1, 256, dtype=torch.int32)
    mantissa = torch.zeros(x.numel() * (size - 1) // size, dtype=dtype)
    fixed, var = torch.zeros(int(x.numel() * room), dtype=dtype), torch.zeros(x.numel(), dtype=dtype)
    facade.npu_hans_encode(x, True, out=[pdf, mantissa, fixed, var])
    back = facade.npu_hans_decode(mantissa, fixed, var, pdf, out=torch.zeros_like(x))
    integer = torch.int32 if size == 4 else torch.int16
    assert torch.equal(back.view(integer), x.view(integer))
    assert pdf.sum() == x.numel()
    if dtype == torch.float32:
        assert pdf[0, 127].item() == ((x.abs() >= 1) & (x.abs() < 2)).sum()
    with pytest.raises(RuntimeError, match="multiples of 64 from 32768"):
        facade.npu_hans_encode(x[:2], True, out=[pdf, mantissa, fixed, var])

"""Operators of toprope's torch_npu against formulas written again here, and what they refuse.

The families with a test file of their own are in tests/compat/operators.
"""

import inspect
import math
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

import forkserver
from toprope.support.npu_operators import npu_operators

pytestmark = [pytest.mark.native, pytest.mark.process, pytest.mark.usefixtures("facade")]

HALVES = (torch.float16, torch.bfloat16)
FACADE = Path(__file__).resolve().parents[2] / "src" / "toprope" / "compat" / "torch_npu"
FEW = settings(max_examples=20)


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def double(*shape, seed=0):
    return normal(*shape, seed=seed, dtype=torch.float64).requires_grad_()


def close(actual, expected, tolerance=1e-5):
    expected = torch.as_tensor(np.asarray(expected), dtype=torch.float64)
    torch.testing.assert_close(actual.double(), expected, rtol=tolerance, atol=tolerance)


def run(code, **variables):
    """Run a program in a process of its own where the facades are importable."""
    head = "import toprope.compat\ntoprope.compat.install()\n"
    return forkserver.run(
        [sys.executable, "-W", "error", "-c", head + code],
        timeout=120,
        env={**os.environ, **variables},
    )


# --- the operators as a whole


def test_schema_and_function_agree(facade):
    """torch calls by the schema, the function documents itself: names, order and defaults must be the same."""
    assert facade.OPERATORS
    for name, made in facade.OPERATORS.items():
        packet, _, overload = name.partition(".")
        schema = getattr(getattr(getattr(torch.ops, made.namespace), packet), overload or "default")._schema
        parameters = list(inspect.signature(made.function).parameters.values())
        named = [argument.name for argument in schema.arguments]  # torch_npu's `input` may be our `self`
        assert ["input" if each.name == "self" else each.name for each in parameters] == [
            "input" if each == "self" else each for each in named
        ], name
        for ours, argument in zip(parameters, schema.arguments, strict=True):
            if argument.has_default_value():
                assert ours.default == argument.default_value, name
            else:
                assert ours.default is inspect.Parameter.empty, name
            assert (ours.kind is inspect.Parameter.KEYWORD_ONLY) == argument.kwarg_only, name


def test_operators_are_those_of_torch_ops(facade):
    for name, made in facade.OPERATORS.items():
        if name != "get_npu_format":  # which gives the enumeration in place of the number
            packet = name.partition(".")[0]
            assert getattr(facade, packet) is getattr(getattr(torch.ops, made.namespace), packet)


def test_an_operator_without_a_gradient_on_the_card_has_none_here(facade):
    """npu_add_rms_norm is not in op-plugin's derivatives.yaml; its sum had a gradient here."""
    x = torch.randn(2, 8, requires_grad=True)
    y = facade.npu_add_rms_norm(x, x, torch.ones(8))[0]
    with pytest.warns(UserWarning, match="an autograd kernel was not registered"):
        y.sum().backward()
    assert x.grad is None


def test_none_for_a_tensor_was_an_internal_error(facade):
    with pytest.raises(RuntimeError, match="npu_rms_norm: gamma is None; it must be a tensor"):
        facade.npu_rms_norm(torch.ones(2, 4), None)


def test_an_operator_that_is_missing_says_what_it_is(facade):
    table = npu_operators()
    for name in table["npu"]:
        if name in table["pages"] and not hasattr(facade, name):
            with pytest.raises(AttributeError, match=re.escape(f"(an operator, {name}{table['npu'][name]}, page ")):
                getattr(facade, name)


def test_autocast_casts_nothing(facade):
    query = normal(1, 2, 8, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = facade.npu_fusion_attention(query, query, query, 2, "BNSD")[0]
    outside = facade.npu_fusion_attention(query, query, query, 2, "BNSD")[0]
    assert inside.dtype == torch.float32
    assert torch.equal(inside, outside)


@pytest.mark.slow
def test_compiled_whole(facade):
    def block(x, gamma, cosine, sine):
        x = facade.npu_rms_norm(x, gamma)[0].unflatten(-1, (2, 8))
        x = facade.npu_rotary_mul(x, cosine, sine)
        x = facade.npu_fusion_attention(x, x, x, 2, "BSND", scale=0.3)[0]
        return facade.npu_swiglu(x.flatten(-2))

    arguments = normal(2, 6, 16), normal(16, seed=1), normal(1, 6, 1, 8, seed=2), normal(1, 6, 1, 8, seed=3)
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(*arguments), block(*arguments))


@pytest.mark.slow
def test_meta_tensors_give_shapes(facade):
    query, key = torch.empty(3, 5, 12, device="meta"), torch.empty(3, 7, 6, device="meta")
    mask = torch.empty(5, 7, dtype=torch.bool, device="meta")
    out, largest, total, empty, *_ = facade.npu_fusion_attention(query, key, key, 4, "BSH", atten_mask=mask)
    assert out.shape == (3, 5, 12)
    assert largest.shape == total.shape == (3, 4, 5, 8)
    assert empty.shape == (0,)


# --- activations


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@FEW
@given(
    shape=st.lists(st.integers(1, 4), min_size=0, max_size=3),
    half=st.integers(1, 5),
    place=st.integers(0, 3),
    negative=st.booleans(),
)
def test_swiglu(shape, half, place, negative):
    axis = min(place, len(shape))
    shape.insert(axis, 2 * half)
    x = normal(*shape)
    first, second = np.split(x.double().numpy(), 2, axis)
    result = torch.ops.npu.npu_swiglu(x, axis - len(shape) if negative else axis)
    close(result, first * sigmoid(first) * second)


@pytest.mark.parametrize("approximate", [0, 1])
@pytest.mark.parametrize("left", [False, True])
def test_geglu(facade, approximate, left):
    x = normal(3, 8)
    first, second = np.split(x.double().numpy(), 2, -1)
    gate, linear = (first, second) if left else (second, first)
    if approximate:
        bend = np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3))
    else:
        bend = np.vectorize(math.erf)(gate / math.sqrt(2))
    gelu = 0.5 * gate * (1 + bend)
    product, gated = facade.npu_geglu(x, -1, approximate, left)
    close(product, linear * gelu)
    close(gated, gelu)
    assert not facade.npu_geglu(x.requires_grad_())[1].requires_grad


def test_simple_activations(facade):
    x = normal(50)
    wide = x.double().numpy()
    close(facade.npu_silu(x), wide * sigmoid(wide))
    close(facade.npu_fast_gelu(x), wide * sigmoid(1.702 * wide))
    close(facade.npu_gelu(x), 0.5 * wide * (1 + np.vectorize(math.erf)(wide / math.sqrt(2))))
    cubic = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
    close(facade.npu_gelu(x, approximate="tanh"), 0.5 * wide * (1 + np.tanh(cubic)))


@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision_is_rounded_once(facade, dtype):
    x = normal(64, 32, dtype=dtype)
    exact = torch.ops.npu.npu_swiglu(x.float())
    result = facade.npu_swiglu(x)
    assert result.dtype == dtype
    assert torch.equal(result, exact.to(dtype))


def test_gradients_of_activations(facade):
    from toprope.compat.torch_npu.operators.activation import fast_gelu, geglu, swiglu

    x = double(2, 3, 4)
    assert gradcheck(lambda x: swiglu(x, -1), (x,))
    assert gradcheck(lambda x: swiglu(x, 2), (x,))
    assert gradcheck(lambda x: geglu(x, -1, "tanh", False)[0], (x,))
    assert gradcheck(fast_gelu, (x,))


@pytest.mark.parametrize(
    ("x", "dim", "text"),
    [
        (torch.zeros(2, 3), -1, "odd"),
        (torch.zeros(3, 2), 0, "odd"),
        (torch.zeros(2, 2), 2, "out of range"),
        (torch.zeros(2, 2), -3, "out of range"),
        (torch.zeros(()), -1, "0 dimensions"),
        (torch.zeros((1,) * 8 + (2,)), -1, "9 dimensions"),
        (torch.zeros(2, 2, dtype=torch.float64), -1, "float64"),
        (torch.zeros(2, 2, dtype=torch.int32), -1, "int32"),
    ],
)
def test_swiglu_refuses(facade, x, dim, text):
    with pytest.raises(RuntimeError, match=f"npu_swiglu.*{text}"):
        facade.npu_swiglu(x, dim)


def test_activations_refuse_unknown_forms(facade):
    with pytest.raises(RuntimeError, match="approximate is 2"):
        facade.npu_geglu(torch.zeros(2), -1, 2)
    with pytest.raises(RuntimeError, match="'erf'"):
        facade.npu_gelu(torch.zeros(2), approximate="erf")


# --- norms


@FEW
@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    last=st.integers(1, 4),
    epsilon=st.sampled_from([1e-6, 0.1]),
)
def test_rms_norm(shape, last, epsilon):
    last = min(last, len(shape))
    x, gamma = normal(*shape), normal(*shape[len(shape) - last :], seed=1)
    axes = tuple(range(len(shape) - last, len(shape)))
    wide = x.double().numpy()
    rstd = 1 / np.sqrt((wide**2).mean(axes, keepdims=True) + epsilon)
    y, statistic = torch.ops.npu.npu_rms_norm(x, gamma, epsilon)
    close(y, wide * rstd * gamma.double().numpy())
    close(statistic, rstd)
    assert statistic.dtype == torch.float32


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("gamma", ["same", "float32"])
def test_rms_norm_in_half_precision(facade, dtype, gamma):
    x = normal(4, 16, dtype=dtype)
    scale = normal(16, seed=1).to(dtype if gamma == "same" else torch.float32)
    y, rstd = facade.npu_rms_norm(x, scale, 1e-5)
    assert (y.dtype, rstd.dtype) == (dtype, torch.float32)
    assert torch.equal(y, facade.npu_rms_norm(x.float(), scale.float(), 1e-5)[0].to(dtype))


def test_gradients_of_norms(facade):
    from toprope.compat.torch_npu.operators.norm import rms_norm

    assert gradcheck(lambda x, gamma: rms_norm(x, gamma, 1e-3)[0], (double(3, 4), double(4, seed=1)))
    x = normal(3, 4).requires_grad_()
    y, rstd = facade.npu_rms_norm(x, torch.ones(4))
    assert y.requires_grad
    assert not rstd.requires_grad


def test_add_rms_norm(facade):
    first, second, gamma = normal(2, 3, 4), normal(2, 3, 4, seed=1), normal(4, seed=2)
    y, rstd, total = facade.npu_add_rms_norm(first, second, gamma)
    assert torch.equal(total, first + second)
    expected = facade.npu_rms_norm(total, gamma)
    assert torch.equal(y, expected[0])
    assert torch.equal(rstd, expected[1])
    with pytest.raises(RuntimeError, match="one shape"):
        facade.npu_add_rms_norm(first, second[0], gamma)


@pytest.mark.parametrize(
    ("x", "gamma", "text"),
    [
        (torch.zeros(2, 4), torch.zeros(2), "not the last part"),
        (torch.zeros(4), torch.zeros(1, 4), "not the last part"),
        (torch.zeros(2, 4), torch.zeros(()), "not the last part"),
        (torch.zeros(2, 0), torch.zeros(0), "empty"),
        (torch.zeros(2, 4), torch.zeros(4, dtype=torch.float16), "gamma is torch.float16"),
        (torch.zeros(2, 4, dtype=torch.float64), torch.zeros(4), "float64"),
        (torch.zeros((1,) * 9), torch.zeros(1), "9 dimensions"),
    ],
)
def test_rms_norm_refuses(facade, x, gamma, text):
    with pytest.raises(RuntimeError, match=f"npu_rms_norm.*{text}"):
        facade.npu_rms_norm(x, gamma)


# --- rotary embedding


def rotated(x, angle, mode):
    """Every pair of elements as a complex number, turned by its angle."""
    wide, turn = x.double().numpy(), np.exp(1j * angle)
    if mode == "half":
        first, second = np.split(wide, 2, -1)
        turned = (first + 1j * second) * turn
        return np.concatenate((turned.real, turned.imag), -1)
    turned = (wide[..., ::2] + 1j * wide[..., 1::2]) * turn
    return np.stack((turned.real, turned.imag), -1).reshape(wide.shape)


def cosines(angle, mode):
    axis = -1 if mode == "half" else None
    double = np.concatenate((angle, angle), -1) if axis else np.repeat(angle, 2, -1)
    return torch.tensor(np.cos(double)).float(), torch.tensor(np.sin(double)).float()


@pytest.mark.parametrize("mode", ["half", "interleave"])
@pytest.mark.parametrize("shape", [(1, 1, 5, 3), (1, 5, 1, 3), (5, 1, 1, 3)])
def test_rotary_turns_pairs(facade, mode, shape):
    layout = [5 if size == 5 else other for size, other in zip(shape, (2, 4, 3), strict=False)]
    x = normal(*layout, 6)
    angle = normal(*shape, seed=1).double().numpy()
    result = facade.npu_rotary_mul(x, *cosines(angle, mode), mode)
    close(result, rotated(x, angle, mode))


@pytest.mark.parametrize("dtype", HALVES)
def test_rotary_takes_cosines_in_another_dtype(facade, dtype):
    x, (cosine, sine) = normal(2, 3, 5, 4, dtype=dtype), cosines(normal(2, 1, 5, 2, seed=1).numpy(), "half")
    result = facade.npu_rotary_mul(x, cosine, sine)
    assert result.dtype == dtype
    assert torch.equal(result, facade.npu_rotary_mul(x, cosine.to(dtype), sine.to(dtype)))


def test_rotary_with_a_matrix(facade):
    x, (cosine, sine) = normal(2, 3, 5, 4), cosines(normal(1, 1, 5, 2, seed=1).numpy(), "half")
    matrix = torch.zeros(4, 4)
    matrix[:2, 2:], matrix[2:, :2] = torch.eye(2), -torch.eye(2)
    torch.testing.assert_close(
        facade.npu_rotary_mul(x, cosine, sine, "half", matrix), facade.npu_rotary_mul(x, cosine, sine)
    )
    with pytest.raises(RuntimeError, match="no gradient"):
        facade.npu_rotary_mul(x.requires_grad_(), cosine, sine, "half", matrix)
    with pytest.raises(RuntimeError, match="4 x 4"):
        facade.npu_rotary_mul(x.detach(), cosine, sine, "half", matrix[:2])


def test_gradients_of_rotary(facade):
    from toprope.compat.torch_npu.operators.rotary import turned

    for mode in ("half", "interleave"):
        assert gradcheck(
            lambda x, r1, r2, mode=mode: r1 * x + r2 * turned(x, mode), (double(2, 4), double(4), double(4))
        )
    x = normal(1, 2, 3, 4).requires_grad_()
    cosine, sine = normal(1, 1, 3, 4, seed=1).requires_grad_(), normal(1, 1, 3, 4, seed=2)
    facade.npu_rotary_mul(x, cosine, sine).sum().backward()
    # The transpose of a turn in the plane is the turn back.
    expected = cosine + torch.cat((sine[..., 2:], -sine[..., :2]), -1)
    torch.testing.assert_close(x.grad, expected.detach().expand_as(x))
    torch.testing.assert_close(cosine.grad, x.detach().sum(1, keepdim=True))


@pytest.mark.parametrize(
    ("shape", "cosine", "mode", "text"),
    [
        ((2, 3, 5, 4), (1, 1, 5, 4), "quarter", "half or interleave"),
        ((2, 3, 5, 3), (1, 1, 5, 3), "half", "even number"),
        ((1, 1, 1, 898), (1, 1, 1, 898), "half", "up to 896"),
        ((2, 3, 5, 4), (1, 1, 5, 2), "half", "along the last axis"),
        ((2, 3, 5, 4), (5, 4), "half", "dimensions"),
        ((2, 3, 5, 4), (1, 3, 5, 4), "half", "does not fit"),
        ((2, 3, 5, 4), (1, 1, 1, 4), "half", "does not fit"),
        ((2, 3, 5, 4), (2, 1, 5, 4), "interleave", "does not fit"),
        ((6, 3, 4), (1, 3, 4), "half", "does not fit"),
    ],
)
def test_rotary_refuses(facade, shape, cosine, mode, text):
    with pytest.raises(RuntimeError, match=f"npu_rotary_mul.*{text}"):
        facade.npu_rotary_mul(torch.zeros(shape), torch.zeros(cosine), torch.zeros(cosine), mode)


@pytest.mark.parametrize("cosine", [(2, 3, 5, 4), (2, 1, 5, 4), (2, 3, 1, 4), (1, 1, 5, 4), (1, 3, 1, 4), (2, 1, 1, 4)])
def test_rotary_takes_every_documented_form(facade, cosine):
    x = normal(2, 3, 5, 4)
    assert torch.equal(facade.npu_rotary_mul(x, torch.ones(cosine), torch.zeros(cosine)), x)
    flat = facade.npu_rotary_mul(x[0], torch.ones(3, 1, 4), torch.zeros(3, 1, 4))
    assert torch.equal(flat, x[0])


# --- casts


def test_casts(facade):
    x = normal(3)
    assert torch.equal(facade.npu_dtype_cast(x, torch.float16), x.half())
    assert facade.npu_dtype_cast(x, torch.bfloat16).dtype == torch.bfloat16
    assert torch.equal(facade.npu_format_cast(x, 29), x)
    with pytest.raises(RuntimeError, match="300"):
        facade.npu_dtype_cast(x, 300)
    with pytest.raises(RuntimeError, match=r"as torch_npu\.float16"):
        facade.npu_dtype_cast(x, torch.int32, torch.float16)
    with pytest.raises(RuntimeError, match="format 5"):
        facade.npu_format_cast(x, 5)


# --- the module


@pytest.mark.slow
def test_without_a_card():
    done = run(
        "import torch_npu, torch_npu.npu, torch, importlib.util\n"
        "from torch_npu.npu import is_available\n"
        "from torch_npu.optim import NpuFusedAdamW\n"
        "assert torch_npu.npu is torch.npu\n"
        "assert is_available() is torch.npu.is_available() is False\n"
        "assert torch_npu.__version__ == torch.__version__.partition('+')[0]\n"
        "assert abs(torch_npu.npu_swiglu(torch.ones(2)).item() - 0.7310586) < 1e-6\n"
        "assert importlib.util.find_spec('torch_npu').origin.endswith('__init__.py')\n"
        "assert 'npu_swiglu' in dir(torch_npu) and 'npu' in torch_npu.__all__\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == done.stderr == ""


ON_THE_CARD = """
import torch, torch_npu, torch_npu.npu.amp
from torch_npu.npu.amp import GradScaler
assert torch_npu.npu is torch.npu and torch_npu.npu.is_available()
assert GradScaler is torch.npu.amp.GradScaler
import torch_npu.npu.streams
assert torch_npu.npu.streams is torch.npu.streams

def step(device):
    torch.manual_seed(3)
    x, gamma = torch.randn(2, 6, 16).to(device).requires_grad_(), torch.ones(16).to(device).requires_grad_()
    angle = torch.randn(1, 6, 1, 8)
    mask = torch.ones(2048, 2048).triu(1).bool().to(device)
    y = torch_npu.npu_rms_norm(x, gamma)[0].unflatten(-1, (2, 8))
    y = torch_npu.npu_rotary_mul(y, angle.cos().to(device), angle.sin().to(device))
    y = torch_npu.npu_fusion_attention(y, y, y, 2, "BSND", scale=0.3, atten_mask=mask, sparse_mode=3)[0]
    y = torch_npu.npu_swiglu(y.flatten(-2))
    kind = torch.optim.AdamW if device == "cpu" else torch_npu.optim.NpuFusedAdamW  # which takes tensors on the card
    optimizer = kind([x, gamma], lr=0.1)
    y.square().sum().backward()
    optimizer.step()
    return y, x, gamma

for here, there in zip(step("cpu"), step("npu:0")):
    assert there.device == torch.device("npu:0")
    torch.testing.assert_close(there.cpu(), here, rtol=1e-4, atol=1e-5)

half = torch.randn(2, 8, device="npu", dtype=torch.float16)
with torch.autocast("npu", dtype=torch.bfloat16):
    assert torch_npu.npu_swiglu(half).dtype == torch.float16
    wide = torch.randn(1, 2, 4, 8, device="npu")
    assert torch_npu.npu_fusion_attention(wide, wide, wide, 2, "BNSD")[0].dtype == torch.float32

torch.npu.manual_seed(11)
dropped = torch_npu.npu_fusion_attention(wide, wide, wide, 2, "BNSD", keep_prob=0.5)
assert dropped[4] == 11
again = [torch_npu.npu_fusion_attention(wide, wide, wide, 2, "BNSD", keep_prob=0.5, seed=9)[0] for _ in range(2)]
assert torch.equal(*again)
"""


@pytest.mark.slow
def test_on_the_simulated_card():
    done = run(ON_THE_CARD, TOPROPE_SIM="910B3")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_missing_names_say_what_is_missing():
    done = run(
        "import torch_npu\n"
        "for name in ('attention_worker_scheduler', 'onnx', 'npu_no_such_operator', '__wrapped__'):\n"
        "    assert not hasattr(torch_npu, name)\n"
        "    try:\n"
        "        getattr(torch_npu, name)\n"
        "    except AttributeError as error:\n"
        "        print(error)\n"
    )
    assert done.returncode == 0, done.stderr
    real, module, nobody, python = done.stdout.splitlines()
    assert "torch_npu.attention_worker_scheduler: the real torch_npu has it (an operator, " in real
    assert "torch_npu.onnx: the real torch_npu has it" in module
    assert "torch_npu.npu_no_such_operator: it is not one of the documented names of the real torch_npu" in nobody
    assert python == "module 'torch_npu' has no attribute '__wrapped__'"

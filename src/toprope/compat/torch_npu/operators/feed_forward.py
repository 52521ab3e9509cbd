"""Feed-forward network, also with experts: npu_ffn.

Part of the torch_npu facade: programs call `torch_npu.npu_ffn`. Name and parameters follow support/npu_operators.toml,
results and refusals the vendor's documents and code; how a value is composed of torch's operators is free. Tests:
tests/compat/operators/test_linear.py for values and refusals, tests/sim/simulated/test_npu_operators.py for shapes and
the card.

Sources: torch_npu-npu_ffn.md, FFNKernelNpuOpApi.cpp and test_npu_ffn.py of Ascend/op-plugin; ffn_glu.cpp of
ops-transformer for the half that is activated.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from .activation import fast_gelu
from .checks import refuse
from .integer_matmul import dequantised_weight, integer_matmul, unpacked_scale
from .registry import operator

__all__ = ["npu_ffn"]

_NAME = "npu_ffn"
_MOST_EXPERTS = 256


def _gelu_tanh(value: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(value, approximate="tanh")


_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "fastgelu": fast_gelu,
    "gelu": torch.nn.functional.gelu,
    "relu": torch.relu,
    "silu": torch.nn.functional.silu,
}

_GATES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "geglu": _gelu_tanh,
    "swiglu": torch.nn.functional.silu,
    "reglu": torch.relu,
}
"""Activations of the second half of the columns, by which the first half is multiplied."""


@dataclass(frozen=True)
class _Layer:
    """Weight of one of the two layers, with its parameters; None for those that were left out."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    deq_scale: torch.Tensor | None
    antiquant_scale: torch.Tensor | None
    antiquant_offset: torch.Tensor | None

    def of(self, expert: int | None) -> _Layer:
        """Part of an expert; None for a network without experts."""
        if expert is None:
            return self
        given = (self.bias, self.deq_scale, self.antiquant_scale, self.antiquant_offset)
        return _Layer(self.weight[expert], *(None if each is None else each[expert] for each in given))

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """x @ weight + bias in float32, from float16 and bfloat16."""
        weight = self.weight
        if self.antiquant_scale is not None:
            weight = dequantised_weight(weight, self.antiquant_scale, self.antiquant_offset, x.dtype)
        result = x.to(torch.float32) @ weight.to(torch.float32)
        return result if self.bias is None else result + self.bias.to(torch.float32)

    def scaled_product(self, x: torch.Tensor) -> torch.Tensor:
        """(x @ weight + bias) * deq_scale in float32, from int8."""
        total = integer_matmul(x, self.weight)
        if self.bias is not None:
            total = total + self.bias
        assert self.deq_scale is not None
        scale, _ = unpacked_scale(self.deq_scale)
        return total.to(torch.float32) * scale


def _activated(value: torch.Tensor, activation: str) -> torch.Tensor:
    if activation in _ACTIVATIONS:
        return _ACTIVATIONS[activation](value)
    left, right = value.chunk(2, dim=-1)
    return left * _GATES[activation](right)


def _network(
    x: torch.Tensor,
    first: _Layer,
    second: _Layer,
    activation: str,
    scale: torch.Tensor | None,
    offset: torch.Tensor | None,
    precise: bool,
    dtype: torch.dtype,
) -> torch.Tensor:
    if x.dtype == torch.int8:
        # In float16 each step is rounded, as test_npu_ffn.py has it; of bfloat16 nothing is known.
        step = torch.float16 if dtype == torch.float16 else torch.float32
        hidden = _activated(first.scaled_product(x).to(dtype).to(step), activation)
        assert scale is not None
        hidden = hidden * scale.to(step)
        if offset is not None:
            hidden = hidden + offset.to(step)
        return second.scaled_product(torch.round(hidden).clamp(-128, 127).to(torch.int8)).to(dtype)
    hidden = first.product(x)
    if not precise:
        hidden = hidden.to(x.dtype).to(torch.float32)
    return second.product(_activated(hidden, activation).to(x.dtype)).to(dtype)


def _check(
    x: torch.Tensor, first: _Layer, second: _Layer, activation: str, scale: torch.Tensor | None, precise: bool
) -> None:
    if not 2 <= x.dim() <= 8:
        raise RuntimeError(f"x shape dims should be 2~8, but it is {x.dim()}")
    depth, rows = x.shape[-1], first.weight.shape[-2] if first.weight.dim() >= 2 else -1
    if depth != rows:
        raise RuntimeError(
            f"The k of x and weight should be equal. but x_k_dim is {depth}, wight1_k_dim is {rows}"  # as it prints it
        )
    if activation not in _ACTIVATIONS and activation not in _GATES:
        names = ", ".join([*_ACTIVATIONS, *_GATES])
        refuse(_NAME, f"activation {activation!r} is unknown; the kernel takes {names}")
    weights = (first.weight.dtype, second.weight.dtype)
    quantised = x.dtype == torch.int8
    anti = first.antiquant_scale is not None
    wanted = torch.int8 if quantised or anti else x.dtype
    if x.dtype not in (torch.int8, torch.float16, torch.bfloat16) or weights != (wanted, wanted):
        refuse(_NAME, f"x is {x.dtype} and the weights {weights}; the kernel does not take them together")
    if quantised and (scale is None or first.deq_scale is None or second.deq_scale is None or anti):
        refuse(_NAME, "int8 takes scale, deq_scale1 and deq_scale2, and no antiquant_scale")
    if not quantised and (scale is not None or first.deq_scale is not None or second.deq_scale is not None):
        refuse(_NAME, "scale, deq_scale1 and deq_scale2 take an x of int8")
    if anti != (second.antiquant_scale is not None):
        refuse(_NAME, "antiquant_scale1 and antiquant_scale2 go together")
    gated = activation in _GATES
    if gated and (x.dtype != torch.float16 or anti or precise or first.weight.dim() != 2):
        refuse(_NAME, f"{activation} takes float16, inner_precise 1 and no experts")
    if first.weight.shape[-1] != second.weight.shape[-2] * (2 if gated else 1):
        shapes = f"weight1 {list(first.weight.shape)} and weight2 {list(second.weight.shape)}"
        refuse(_NAME, f"{shapes} do not fit with {activation}")
    if second.weight.shape[-1] != depth:
        refuse(_NAME, f"weight2 has {second.weight.shape[-1]} columns; it must have as many as x, {depth}")


@operator("npu_ffn")
def npu_ffn(
    x: torch.Tensor,
    weight1: torch.Tensor,
    weight2: torch.Tensor,
    activation: str,
    *,
    expert_tokens: Sequence[int] | None = None,
    expert_tokens_index: Sequence[int] | None = None,
    bias1: torch.Tensor | None = None,
    bias2: torch.Tensor | None = None,
    scale: torch.Tensor | None = None,
    offset: torch.Tensor | None = None,
    deq_scale1: torch.Tensor | None = None,
    deq_scale2: torch.Tensor | None = None,
    antiquant_scale1: torch.Tensor | None = None,
    antiquant_scale2: torch.Tensor | None = None,
    antiquant_offset1: torch.Tensor | None = None,
    antiquant_offset2: torch.Tensor | None = None,
    inner_precise: int | None = None,
    output_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """activation(x @ weight1 + bias1) @ weight2 + bias2, with or without experts.

    For int8: ((activation((x @ weight1 + bias1) * deq_scale1) * scale + offset) @ weight2 + bias2) * deq_scale2, where
    what weight2 multiplies is rounded to int8. With antiquant_scale, the weights are
    (weight + antiquant_offset) * antiquant_scale.

    Args:
        x: (..., m, k1), float16, bfloat16 or int8.
        weight1: (k1, n1), or (experts, k1, n1).
        weight2: (k2, k1), or (experts, k2, k1); n1 is k2, or 2 k2 with a gate.
        activation: "fastgelu", "gelu", "relu", "silu", or a gate, "geglu", "swiglu" or "reglu": the first half of the
            columns times the activation of the second.
        expert_tokens: number of rows of each expert.
        expert_tokens_index: running totals of the rows, instead of expert_tokens.
        bias1: (n1,) or (experts, n1).
        bias2: (k1,) or (experts, k1).
        scale: (1,), (n1,), (experts,) or (experts, n1), float32.
        offset: (1,) or (experts,), float32.
        deq_scale1: (n1,) or (experts, n1); int64 (npu_trans_quant_param), float32 or bfloat16.
        deq_scale2: (k1,) or (experts, k1), of the same dtype.
        antiquant_scale1: (n1,) or (experts, n1), of the dtype of x.
        antiquant_scale2: (k1,) or (experts, k1).
        antiquant_offset1: as antiquant_scale1.
        antiquant_offset2: as antiquant_scale2.
        inner_precise: 1 rounds the first product to float16; no effect for other dtypes.
        output_dtype: for int8, float16 (None) or bfloat16.

    Returns:
        a tensor of the shape of x.

    Raises:
        RuntimeError: the kernel would not take the input.
    """
    first = _Layer(weight1, bias1, deq_scale1, antiquant_scale1, antiquant_offset1)
    second = _Layer(weight2, bias2, deq_scale2, antiquant_scale2, antiquant_offset2)
    precise = not inner_precise or x.dtype != torch.float16
    _check(x, first, second, activation, scale, precise)
    dtype = (output_dtype or torch.float16) if x.dtype == torch.int8 else x.dtype
    if dtype not in (torch.float16, torch.bfloat16):
        refuse(_NAME, f"output_dtype is {dtype}; the kernel takes float16 and bfloat16")
    if expert_tokens is not None and expert_tokens_index is not None:
        raise RuntimeError("expert_tokens and expert_tokens_index should not have the value simultaneously.")
    rows = x.reshape(-1, x.shape[-1])
    if expert_tokens is None and expert_tokens_index is None:
        if weight1.dim() != 2:
            refuse(_NAME, f"weight1 has {weight1.dim()} dimensions; without expert_tokens the kernel takes 2")
        result = _network(rows, first, second, activation, scale, offset, precise, dtype)
        return result.reshape(*x.shape[:-1], weight2.shape[-1])
    ends = list(expert_tokens_index or itertools.accumulate(expert_tokens or ()))
    if weight1.dim() != 3 or weight1.shape[0] != len(ends) or len(ends) > _MOST_EXPERTS:
        refuse(_NAME, f"{len(ends)} experts do not fit weight1 of shape {list(weight1.shape)}")
    if (ends and ends[-1] != rows.shape[0]) or any(end < begin for begin, end in itertools.pairwise([0, *ends])):
        refuse(_NAME, f"the experts' rows end at {ends}; the last end must be {rows.shape[0]}")
    results = [
        _network(
            rows[begin:end],
            first.of(expert),
            second.of(expert),
            activation,
            None if scale is None else scale[expert],
            None if offset is None else offset[expert],
            precise,
            dtype,
        )
        for expert, (begin, end) in enumerate(itertools.pairwise([0, *ends]))
    ]
    return torch.cat(results).reshape(*x.shape[:-1], weight2.shape[-1])

"""DTensor's sharding rules for torch_npu's operators: placements of the results for placements of the arguments.

The package imports it, which registers them; torch chooses by the cost of moving the arguments. Which dimensions may be
split follows from the operators' formulas; torch_npu/distributed/tensor of Ascend/pytorch has the same operators.
Tests: tests/compat/test_torch_npu_dtensor.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding
from torch.distributed.tensor.placement_types import Placement

__all__: list[str] = []

Rule = tuple[Sequence[Placement | None], Sequence[Placement]]
"""Placements of the results, None for one that is not there; placements of the arguments that are tensors."""

_npu = torch.ops.npu


def _rule(*operators: str) -> Callable[[Callable[..., Iterator[Rule]]], Callable[..., Iterator[Rule]]]:
    """Register what a function yields for operators, and that all may be replicated.

    The function takes the operator's arguments, with what DTensor knows of a tensor in the tensor's place.
    """

    def wrap(function: Callable[..., Iterator[Rule]]) -> Callable[..., Iterator[Rule]]:
        def rules(*args: Any, **kwargs: Any) -> list[tuple[list[Any], list[Any]]]:
            found = list(function(*args, **kwargs))
            results, arguments = found[0]
            whole = [None if each is None else Replicate() for each in results], [Replicate()] * len(arguments)
            return [whole, *((list(results), list(arguments)) for results, arguments in found)]

        for name in operators:
            register_sharding(getattr(_npu, name).default)(rules)
        return function

    return wrap


def _given(*tensors: Any) -> int:
    return sum(tensor is not None for tensor in tensors)


@_rule("npu_fast_gelu_backward")
def _elementwise(grad: Any, x: Any) -> Iterator[Rule]:
    for dim in range(x.ndim):
        yield [Shard(dim)], [Shard(dim)] * 2


@_rule("npu_dtype_cast_backward", "_npu_dtype_cast_backward")
def _cast(grad: Any, *dtypes: Any, **others: Any) -> Iterator[Rule]:
    yield [Partial()], [Partial()]
    for dim in range(grad.ndim):
        yield [Shard(dim)], [Shard(dim)]


@_rule("npu_transpose")
def _transpose(x: Any, perm: Sequence[int], require_contiguous: bool = True) -> Iterator[Rule]:
    for to, of in enumerate(perm):
        yield [Shard(to)], [Shard(of % x.ndim)]


@_rule("npu_layer_norm_eval")
def _layer_norm(
    x: Any, normalized_shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Iterator[Rule]:
    constants = [Replicate()] * _given(weight, bias)
    yield [Replicate()], [Replicate(), *constants]
    for dim in range(x.ndim - len(normalized_shape)):
        yield [Shard(dim)], [Shard(dim), *constants]


@_rule("npu_add_rms_norm")
def _add_rms_norm(x1: Any, x2: Any, gamma: Any, epsilon: float = 1e-6) -> Iterator[Rule]:
    yield [Replicate()] * 3, [Replicate()] * 3
    for dim in range(x1.ndim - gamma.ndim):
        yield [Shard(dim)] * 3, [Shard(dim), Shard(dim), Replicate()]


@_rule("npu_rms_norm_backward")
def _rms_norm_backward(dy: Any, x: Any, gamma: Any, rstd: Any) -> Iterator[Rule]:
    yield [Replicate()] * 2, [Replicate()] * 4
    for dim in range(x.ndim - gamma.ndim):
        yield [Shard(dim), Partial()], [Shard(dim), Shard(dim), Replicate(), Shard(dim)]


@_rule("npu_swiglu_backward")
def _swiglu_backward(grad: Any, x: Any, dim: int = -1) -> Iterator[Rule]:
    yield [Replicate()], [Replicate()] * 2
    for each in range(x.ndim):
        if each != dim % x.ndim:
            yield [Shard(each)], [Shard(each)] * 2


@_rule("npu_rotary_mul_backward")
def _rotary_mul_backward(grad: Any, x: Any, r1: Any, r2: Any, rotary_mode: str = "half") -> Iterator[Rule]:
    for dim in range(x.ndim - 1):
        if r1.shape[dim] == 1 < x.shape[dim]:  # one angle for all of the dimension
            yield [Shard(dim), Partial(), Partial()], [Shard(dim), Shard(dim), Replicate(), Replicate()]
        else:
            yield [Shard(dim)] * 3, [Shard(dim)] * 4


@_rule("npu_gather_backward")
def _gather_backward(grad: Any, sizes: Sequence[int], dim: int, index: Any, sparse_grad: bool) -> Iterator[Rule]:
    yield [Replicate()], [Replicate()] * 2
    for each in range(index.ndim):
        if each != dim % len(sizes) and sizes[each] == index.shape[each] == grad.shape[each]:
            yield [Shard(each)], [Shard(each)] * 2


# its sizes are of the whole, and a process's part has its own
DTensor._op_dispatcher.sharding_propagator.op_to_shape_and_stride_idx[_npu.npu_gather_backward.default] = 1


@_rule("repeat_interleave_backward_int")
def _repeat_interleave_backward(grad: Any, x: Any, repeats: int, dim: int | None = None) -> Iterator[Rule]:
    yield [Replicate()], [Replicate()] * 2
    for each in range(x.ndim):
        if dim is not None and each != dim % x.ndim:
            yield [Shard(each)], [Shard(each)] * 2


@_rule("kl_div_backward")
def _kl_div_backward(grad: Any, x: Any, target: Any, reduction: int = 1, log_target: bool = False) -> Iterator[Rule]:
    yield [Replicate()], [Replicate()] * 3
    if reduction != 1:  # the mean divides by the number of elements, which a part does not have
        for dim in range(x.ndim):
            yield [Shard(dim)], [Replicate() if reduction else Shard(dim), Shard(dim), Shard(dim)]


@_rule("npu_conv2d")
def _conv2d(
    x: Any,
    weight: Any,
    bias: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Iterator[Rule]:
    has_bias = _given(bias)
    yield [Shard(0)], [Shard(0), Replicate(), *[Replicate()] * has_bias]
    if groups == 1:  # output channels
        yield [Shard(1)], [Replicate(), Shard(0), *[Shard(0)] * has_bias]


@_rule("npu_conv2d_backward")
def _conv2d_backward(
    x: Any,
    grad: Any,
    weight: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> Iterator[Rule]:
    yield [Shard(0), Partial(), Partial()], [Shard(0), Shard(0), Replicate()]
    if groups == 1:  # output channels
        yield [Partial(), Shard(0), Shard(0)], [Replicate(), Shard(1), Shard(0)]


@_rule("npu_grouped_matmul_add_")
def _grouped_matmul_add_(y: Any, x: Any, weight: Any, group_list: Any, **others: Any) -> Iterator[Rule]:
    if y.placements[0] == Shard(0):
        raise ValueError("The 0th dimension of the output matrix cannot be split.")
    yield [Shard(1)], [Shard(1), Replicate(), Shard(1), Replicate()]


@_rule("npu_moe_token_permute_grad")
def _permute_grad(tokens: Any, grad: Any, indices: Any, positions: Any, padded_mode: bool = False) -> Iterator[Rule]:
    yield [Shard(1)], [Shard(1), Shard(1), Replicate(), Replicate()]


@_rule("npu_moe_token_permute_grad_v2")
def _permute_grad_v2(grad: Any, positions: Any, *sizes: Any, **others: Any) -> Iterator[Rule]:
    yield [Shard(1)], [Shard(1), Replicate()]


@_rule("npu_moe_token_unpermute_grad")
def _unpermute_grad(
    tokens: Any, grad: Any, positions: Any, probs: Any = None, *others: Any, **named: Any
) -> Iterator[Rule]:
    has_probs = _given(probs)
    yield (
        [Shard(1), Partial() if has_probs else None],
        [Shard(1), Shard(1), Replicate(), *[Replicate()] * has_probs],
    )


@_rule("npu_moe_token_unpermute_grad_v2")
def _unpermute_grad_v2(
    grad: Any,
    positions: Any,
    rows: int,
    dtype: Any,
    probs: Any = None,
    padded_mode: bool = False,
    restore_shape: Sequence[int] | None = None,
    permuted_tokens: Any = None,
) -> Iterator[Rule]:
    has_probs = _given(probs)
    yield (
        [Shard(1), Partial() if has_probs else None],
        [Shard(1), Replicate(), *[Replicate()] * has_probs, *[Shard(1)] * _given(permuted_tokens)],
    )

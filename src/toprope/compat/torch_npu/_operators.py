"""The operators as torch.ops.npu.*: schemas as torch_npu 2.13 has them, each one composed of torch operators.

A composed operator (CompositeImplicitAutograd) needs no kernel of its own: autograd, torch.compile, the CPU and the
simulated card see the operators that it consists of.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ._activation import npu_fast_gelu, npu_geglu, npu_gelu, npu_silu, npu_swiglu
from ._cast import npu_dtype_cast
from ._format import (
    empty_with_format,
    get_npu_format,
    npu_format_cast,
    npu_format_cast_,
    npu_format_cast_as,
    npu_format_cast_as_,
)
from ._fusion_attention import npu_fusion_attention
from ._norm import npu_add_rms_norm, npu_rms_norm
from ._rotary import npu_rotary_mul
from ._storage import copy_memory_, get_storage_size, npu_change_data_ptr

__all__ = ["OPERATORS", "OVERLOADS", "register"]

_ATTENTION = (
    "(Tensor query, Tensor key, Tensor value, int head_num, str input_layout, Tensor? pse=None, "
    "Tensor? padding_mask=None, Tensor? atten_mask=None, float scale=1., float keep_prob=1., "
    "int pre_tockens=2147483647, int next_tockens=2147483647, int inner_precise=0, int[]? prefix=None, "
    "int[]? actual_seq_qlen=None, int[]? actual_seq_kvlen=None, int sparse_mode=0, bool gen_mask_parallel=True, "
    'bool sync=False, str softmax_layout="", Tensor? sink=None, Tensor? dropout_mask=None, int seed=0, '
    "int offset=0) -> (Tensor, Tensor, Tensor, Tensor, int, int, int)"
)

# Source of the schemas: torch_npu/csrc/aten/npu_native_functions_by_codegen.yaml in the torch-npu 2.13.0 wheel.
OPERATORS: dict[str, tuple[str, Callable[..., Any]]] = {
    "copy_memory_": ("(Tensor(a!) self, Tensor src, bool non_blocking=False) -> Tensor(a!)", copy_memory_),
    "empty_with_format": (
        "(int[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, "
        "int acl_format=2, int? base_addr_aligned_kb=None) -> Tensor",
        empty_with_format,
    ),
    "get_npu_format": ("(Tensor self) -> int", get_npu_format),
    "get_storage_size": ("(Tensor self) -> int", get_storage_size),
    "npu_add_rms_norm": (
        "(Tensor x1, Tensor x2, Tensor gamma, float epsilon=1e-06) -> (Tensor, Tensor, Tensor)",
        npu_add_rms_norm,
    ),
    "npu_change_data_ptr": ("(Tensor dst, Tensor src, int index) -> int", npu_change_data_ptr),
    "npu_dtype_cast": ("(Tensor self, int dtype, int? input_dtype=None) -> Tensor", npu_dtype_cast),
    "npu_fast_gelu": ("(Tensor self) -> Tensor", npu_fast_gelu),
    "npu_format_cast": (
        "(Tensor self, int acl_format, *, int? customize_dtype=None, int? input_dtype=None) -> Tensor",
        npu_format_cast,
    ),
    "npu_format_cast_": (
        "(Tensor(a!) self, Tensor src, *, int? customize_dtype=None, int? input_dtype=None) -> Tensor(a!)",
        npu_format_cast_as_,
    ),
    "npu_fusion_attention": (_ATTENTION, npu_fusion_attention),
    "npu_geglu": (
        "(Tensor self, int dim=-1, int approximate=1, bool activate_left=False) -> (Tensor, Tensor)",
        npu_geglu,
    ),
    "npu_gelu": ("(Tensor self, *, str approximate='none') -> Tensor", npu_gelu),
    "npu_rms_norm": ("(Tensor self, Tensor gamma, float epsilon=1e-06) -> (Tensor, Tensor)", npu_rms_norm),
    "npu_rotary_mul": (
        "(Tensor self, Tensor r1, Tensor r2, str rotary_mode='half', Tensor? rotate=None) -> Tensor",
        npu_rotary_mul,
    ),
    "npu_silu": ("(Tensor self) -> Tensor", npu_silu),
    "npu_swiglu": ("(Tensor self, int dim=-1) -> Tensor", npu_swiglu),
}
"""Name of every operator of the facade, with its schema and what computes it."""

OVERLOADS: dict[str, tuple[str, Callable[..., Any]]] = {
    "npu_format_cast.Tensor": (
        "(Tensor self, Tensor dst, *, int? customize_dtype=None, int? input_dtype=None) -> Tensor",
        npu_format_cast_as,
    ),
    "npu_format_cast_.acl_format": (
        "(Tensor(a!) self, int acl_format, *, int? customize_dtype=None, int? input_dtype=None) -> Tensor(a!)",
        npu_format_cast_,
    ),
}
"""Further overloads of these operators."""

_LIBRARY: Any = torch.library.Library  # it has no annotations
_libraries: list[torch.library.Library] = []  # an operator lives as long as the library that defined it


def register() -> None:
    """Define the operators in torch.ops.npu; those that are there already stay."""
    library = _LIBRARY("npu", "FRAGMENT")
    there = {name for name in OPERATORS if hasattr(torch.ops.npu, name)}
    for name, (schema, function) in {**OPERATORS, **OVERLOADS}.items():
        if name.partition(".")[0] in there:
            continue
        library.define(name + schema)
        library.impl(name, _without_autocast(function), "CompositeImplicitAutograd")
    _libraries.append(library)


def _without_autocast(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with autocast off: torch_npu has no cast rule for its operators, so they see what they are given."""

    @functools.wraps(function)
    def call(first: Any, *args: Any, **kwargs: Any) -> Any:
        kind = first.device.type if isinstance(first, torch.Tensor) else "cpu"
        if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
            return function(first, *args, **kwargs)
        with torch.autocast(kind, enabled=False):
            return function(first, *args, **kwargs)

    return call

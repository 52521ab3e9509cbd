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
from ._cast import npu_dtype_cast, npu_format_cast
from ._fusion_attention import npu_fusion_attention
from ._norm import npu_add_rms_norm, npu_rms_norm
from ._rotary import npu_rotary_mul

__all__ = ["OPERATORS", "register"]

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
    "npu_add_rms_norm": (
        "(Tensor x1, Tensor x2, Tensor gamma, float epsilon=1e-06) -> (Tensor, Tensor, Tensor)",
        npu_add_rms_norm,
    ),
    "npu_dtype_cast": ("(Tensor self, int dtype, int? input_dtype=None) -> Tensor", npu_dtype_cast),
    "npu_fast_gelu": ("(Tensor self) -> Tensor", npu_fast_gelu),
    "npu_format_cast": (
        "(Tensor self, int acl_format, *, int? customize_dtype=None, int? input_dtype=None) -> Tensor",
        npu_format_cast,
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

_LIBRARY: Any = torch.library.Library  # it has no annotations
_libraries: list[torch.library.Library] = []  # an operator lives as long as the library that defined it


def register() -> None:
    """Define the operators in torch.ops.npu; those that are there already stay."""
    library = _LIBRARY("npu", "FRAGMENT")
    for name, (schema, function) in OPERATORS.items():
        if hasattr(torch.ops.npu, name):
            continue
        library.define(name + schema)
        library.impl(name, _without_autocast(function), "CompositeImplicitAutograd")
    _libraries.append(library)


def _without_autocast(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with autocast off: torch_npu has no cast rule for its operators, so they see what they are given."""

    @functools.wraps(function)
    def call(first: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        kind = first.device.type
        if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
            return function(first, *args, **kwargs)
        with torch.autocast(kind, enabled=False):
            return function(first, *args, **kwargs)

    return call

"""Stand-in for `torch_npu.atb`, part of the facade: operators of the vendor's library ATB in a namespace of their own.

`import torch_npu` without torch_npu gives this module. It passes on the operators of `torch.ops.atb` that were
registered; any other name is an error that says what it is. Source of the names: torch_npu/op_plugin/atb/_atb_ops.py of
Ascend/op-plugin; other operators of ATB are attributes of torch_npu itself. Tests: tests/compat/test_vendor_names.py
for the names, tests/compat/operators/test_atb_attention.py for the operators.
"""

from typing import Any

import torch

from toprope.compat.missing import missing_from

_NAMES = (
    "npu_paged_cache_load",
    "npu_multi_head_latent_attention",
    "_npu_multi_head_latent_attention_get_workspace",
    "_npu_paged_attention_v2",
    "_npu_paged_attention_v2_get_workspace",
    "_npu_flash_attention_v2",
    "_npu_flash_attention_prefix_v2",
    "npu_fused_add_topk_div",
    "npu_ring_mla",
    "npu_self_attention_prefix_encoder",
    "npu_mla_preprocess",
)

__all__: list[str] = []

_missing = missing_from(__name__)


def __getattr__(name: str) -> Any:
    if name in _NAMES and hasattr(torch.ops.atb, name):
        return getattr(torch.ops.atb, name)
    return _missing(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *(name for name in _NAMES if hasattr(torch.ops.atb, name))})

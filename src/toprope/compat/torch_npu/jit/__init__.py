"""Facade package `torch_npu.jit`: `optimize` rewrites a traced or scripted module to operators of torch_npu.

The patterns are TorchScript's text of the graphs; the name and what becomes of gelu are torch_npu's. Tests:
tests/sim/simulated/test_npu_names.py.
"""

from __future__ import annotations

from typing import Any

import torch

from toprope.compat.missing import missing_from

__all__ = ["optimize"]

__getattr__ = missing_from(__name__)

_GELU = """
graph(%x):
    %approximate = prim::Constant[value="none"]()
    %out = aten::gelu(%x, %approximate)
    return (%out)
"""
_FAST_GELU = """
graph(%x):
    %out = npu::fast_gelu(%x)
    return (%out)
"""


def optimize(jit_mod: Any) -> None:
    """Rewrite a module in place: `gelu` without an approximation becomes `npu::fast_gelu`, which approximates it.

    Source: torch_npu/jit of Ascend/pytorch at 9e73e708.

    Args:
        jit_mod: of torch.jit.trace or torch.jit.script.
    """
    if isinstance(jit_mod, torch.jit.ScriptModule):
        torch.jit.optimize_for_inference(jit_mod)
    torch._C._jit_pass_custom_pattern_based_rewrite_graph(_GELU, _FAST_GELU, jit_mod.graph)

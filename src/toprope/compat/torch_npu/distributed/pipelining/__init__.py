"""Facade package `torch_npu.distributed.pipelining`: torch's pipelines, also of a module that is traced by torch.fx.

`pipeline` is torch's with `mode` and `atomic_units`, which are torch_npu's; the tracing is in _traced.py. Tests:
tests/compat/test_torch_npu_pipelining.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.pipelining import Pipe, SplitPoint
from torch.distributed.pipelining import pipeline as _torchs_pipeline

from toprope.compat.missing import missing_from

from ._traced import traced_pipeline

__all__ = ["pipeline"]


def pipeline(
    module: torch.nn.Module,
    mb_args: tuple[Any, ...],
    mb_kwargs: dict[str, Any] | None = None,
    split_spec: dict[str, SplitPoint] | None = None,
    split_policy: Callable[[torch.fx.GraphModule], torch.fx.GraphModule] | None = None,
    mode: str | None = None,
    atomic_units: list[str] | None = None,
) -> Pipe:
    """Split a module into the stages of a pipeline.

    Args:
        module: what is split.
        mb_args: arguments of one micro-batch.
        mb_kwargs: arguments by name.
        split_spec: by the name of a submodule, whether a stage begins before it or ends after it.
        split_policy: a function that marks the stages in the traced module, instead.
        mode: "export", torch's own and the default, or "fx", which traces Python and keeps torch's layers whole.
        atomic_units: with "fx", names of further submodules that stay whole.

    Raises:
        ValueError: torch_npu's, the arguments exclude each other, or name what is not there.
    """
    if split_spec is not None and split_policy is not None:
        raise ValueError("Cannot specify both `split_spec` and `split_policy`. Please use only one of them.")
    if mode not in (None, "export", "fx"):
        raise ValueError("`mode` must be one of None, 'export', or 'fx'.")
    if mode == "fx":
        return traced_pipeline(module, mb_args, mb_kwargs or {}, split_spec or {}, split_policy, atomic_units or [])
    if atomic_units is not None:
        raise ValueError("`atomic_units` is only supported when `mode='fx'`.")
    return _torchs_pipeline(module, mb_args, mb_kwargs, split_spec, split_policy)


pipeline._torch_npu_pipelining_patch_applied = True  # type: ignore[attr-defined] # programs tell it from torch's by this

__getattr__ = missing_from(__name__)

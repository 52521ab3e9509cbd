"""Part of `torch.npu`: handlers of operators whose host arguments can be changed after capture (`NPUGraph.update`).

Used by graph_capture.py and graphs.py; programs register handlers of their own. Names are torch_npu's; another operator
is a line at the end, with its places from torch_npu's source. Tests: tests/sim/simulated/test_graphs.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, ClassVar

import torch

__all__ = ["_NPU_GRAPH_OP_HANDLERS", "NpuGraphOpHandler", "register_npu_graph_handler"]

_log = logging.getLogger("torch_npu.npu._npugraph_handlers.npugraph_handler")

Spec = tuple[str, int | str, str]
"""Place of an argument ("arg" with its number, "kwarg" with its name), and its name in the input of `update`."""

_NPU_GRAPH_OP_HANDLERS: dict[str, type[NpuGraphOpHandler]] = {}
"""Handlers by the operator's name with overload: "npu_fused_infer_attention_score.out"."""


class NpuGraphOpHandler:
    """Handler of an operator, never instantiated. Subclasses say in `UPDATE_SPECS` what can be changed."""

    UPDATE_SPECS: ClassVar[dict[str, list[Spec]]] = {}

    @classmethod
    def prepare_capture(cls, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
        """Change the call before it is captured."""
        return func, args, kwargs

    @classmethod
    def postprocess_result(cls, result: Any, kwargs: dict[str, Any]) -> Any:
        """Change what the call returns."""
        return result

    @classmethod
    def get_update_specs(cls, op_name: str) -> list[Spec]:
        """Arguments of an operator that can be changed; none for one that the handler does not know."""
        return cls.UPDATE_SPECS.get(op_name, [])

    @classmethod
    def update_args(cls, dispatch_record: Any, update_input: dict[str, Any]) -> None:
        """Change the arguments of a captured call.

        Args:
            dispatch_record: the call, with `args` (a list), `kwargs` and `op_cache_entry`.
            update_input: new values by name.
        """
        for place, which, name in cls.get_update_specs(dispatch_record.op_cache_entry.__name__):
            if name not in update_input:
                continue
            if place == "arg" and isinstance(which, int) and len(dispatch_record.args) > which:
                dispatch_record.args[which] = update_input[name]
            elif place == "kwarg":
                dispatch_record.kwargs[which] = update_input[name]

    @classmethod
    def record_wrap_kwarg(cls, key: str, value: Any, tensor_param_names: Sequence[str]) -> Any:
        """A keyword argument as the record of the call keeps it: without keeping a tensor of the card alive."""
        if isinstance(value, list | tuple):
            return type(value)(cls.record_wrap_kwarg(key, each, [key]) for each in value)
        if isinstance(value, torch.Tensor) and value.device.type == "npu":
            return value.detach() if key in tensor_param_names else deepcopy(value)
        return deepcopy(value)


def register_npu_graph_handler(
    op_names: str | Sequence[str],
) -> Callable[[type[NpuGraphOpHandler]], type[NpuGraphOpHandler]]:
    """Decorate a handler of operators.

    Args:
        op_names: names with overload, such as "npu_fused_infer_attention_score.out".
    """

    def keep(handler: type[NpuGraphOpHandler]) -> type[NpuGraphOpHandler]:
        for name in (op_names,) if isinstance(op_names, str) else op_names:
            if name in _NPU_GRAPH_OP_HANDLERS:
                former = _NPU_GRAPH_OP_HANDLERS[name].__name__
                _log.warning("NpuGraphOpHandler for '%s' is being overridden: %s -> %s", name, former, handler.__name__)
            _NPU_GRAPH_OP_HANDLERS[name] = handler
        return handler

    return keep


class _Out(NpuGraphOpHandler):
    """Operators that write into a list of tensors, which is what the caller gets."""

    @classmethod
    def postprocess_result(cls, result: Any, kwargs: dict[str, Any]) -> Any:
        return kwargs.get("out", result)


def _with_lists(name: str, first: int, query: str, key: str) -> None:
    """Register a fused attention whose lengths of sequences are lists on the host, at `first` and the place after."""
    names = (name, f"{name}.default", f"{name}.out")
    specs: list[Spec] = [("arg", first, query), ("arg", first + 1, key)]
    register_npu_graph_handler(names)(type(f"_{name}", (_Out,), {"UPDATE_SPECS": dict.fromkeys(names, specs)}))


# Source of the places: torch_npu/npu/_npugraph_handlers of the torch-npu 2.13.0 wheel.
_with_lists("npu_fused_infer_attention_score", 5, "actual_seq_lengths", "actual_seq_lengths_kv")
_with_lists("npu_fused_infer_attention_score_v2", 7, "actual_seq_qlen", "actual_seq_kvlen")
_with_lists("npu_fusion_attention_v3", 14, "actual_seq_qlen", "actual_seq_kvlen")
_with_lists("npu_fusion_attention_grad_v3", 21, "actual_seq_qlen", "actual_seq_kvlen")


@register_npu_graph_handler(("_npu_paged_attention.default", "npu_multi_head_latent_attention.out"))
class _PagedAttention(NpuGraphOpHandler):
    """Paged attention, whose lengths of contexts are a tensor on the host."""

    UPDATE_SPECS: ClassVar[dict[str, list[Spec]]] = {
        "_npu_paged_attention.default": [("arg", 7, "context_lens")],
        "npu_multi_head_latent_attention.out": [("arg", 5, "context_lens")],
    }

"""torch's flex_attention on the card: it accepts npu, works under autocast, and is traced as a dense computation.

Registered when the card is installed. torch_npu accepts npu where torch lists devices by name, and registers the
kernels of autocast: torch_npu/utils/patch_flexattention.py. Its Inductor has a template of its own; here a graph has
the dense computation. Tests: tests/sim/simulated/test_attention.py.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from toprope.imports import after_import

if TYPE_CHECKING:
    import torch

__all__ = ["register"]


def register() -> None:
    """Have flex_attention know the card as soon as a program imports it."""
    after_import("torch.nn.attention.flex_attention", _accept_card)
    after_import("torch._higher_order_ops.flex_attention", _register_kernels)


def _accept_card() -> None:
    from torch.nn.attention import flex_attention

    validate = flex_attention._validate_device

    def validate_device(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        if query.device.type != "npu":
            validate(query, key, value)
        elif not query.device == key.device == value.device:
            raise ValueError(
                "Expected query, key, and value to have the same device, but got query.device: "
                f"{query.device}, key.device: {key.device}, and value.device: {value.device} instead."
            )

    flex_attention._validate_device = validate_device


def _register_kernels() -> None:
    import torch

    module = import_module("torch._higher_order_ops.flex_attention")  # the package's attribute is the operator

    forward, backward = module.flex_attention, module.flex_attention_backward
    key = torch._C.DispatchKey.AutocastPrivateUse1  # type: ignore[attr-defined]

    def without_autocast() -> Any:
        return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key))

    def cast(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        dtype = torch.get_autocast_dtype("npu")
        operands = [each.to(dtype) if each.dtype != torch.float64 else each for each in (query, key, value)]
        with without_autocast():
            return forward(*operands, *args, **kwargs)

    def keep(*args: Any, **kwargs: Any) -> Any:
        with without_autocast():
            return backward(*args, **kwargs)

    forward.py_impl(key)(cast)
    backward.py_impl(key)(keep)
    _trace_dense(forward, module.sdpa_dense)
    _trace_dense(backward, module.sdpa_dense_backward)


def _trace_dense(operator: Any, dense: Callable[..., Any]) -> None:
    """Trace the operators of the dense computation where tensors are the card's, not one operator.

    Inductor's template for the host has no gradients and no logsumexp. The functions of scores and masks are traced as
    they are, with the tensors that they capture.
    """
    from torch._subclasses.functional_tensor import FunctionalTensorMode

    trace = operator.python_key_table[FunctionalTensorMode]

    def trace_for_card(mode: Any, query: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if query.device.type != "npu":
            return trace(mode, query, *args, **kwargs)
        with mode:
            return dense(query, *args, **kwargs)

    operator.python_key_table[FunctionalTensorMode] = trace_for_card

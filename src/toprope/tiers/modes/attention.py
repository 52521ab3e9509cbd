"""An effect of modes: nn.MultiheadAttention computes by torch's scaled_dot_product_attention.

nn.MultiheadAttention multiplies and softmaxes step by step when the attention weights are wanted, which is the
default, although most programs throw them away. A call that does not ask for them explicitly takes the fused path;
the weights in its result are computed, as torch would have, when the program first uses them. `modes.models` puts the
hooks on; only the facade vb_global calls `why_not_fused`. Fixed by torch: the arguments of that module's `forward`.
Tests: tests/tiers/test_tiers_modes.py for the hooks, tests/tiers/test_tiers_full_device.py for `why_not_fused`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from toprope.device import Device
from toprope.device.memory import needs_memory
from toprope.errors import DeviceFullError, UsageError
from toprope.tiers.modes.outputs import transforming

__all__ = ["put_on", "why_not_fused"]

_NEED_WEIGHTS = 4
"""Index of `need_weights` in the arguments of nn.MultiheadAttention.forward."""


class _Local(threading.local):
    def __init__(self) -> None:
        self.calls: list[tuple[nn.Module, tuple[Any, ...], dict[str, Any]]] = []
        self.computing = False


_local = _Local()


def put_on(module: nn.MultiheadAttention) -> Callable[[], None]:
    """Register hooks that send a module's calls through the fused path.

    Returns:
        A function that removes them.
    """
    handles = [
        module.register_forward_pre_hook(_before, with_kwargs=True),
        module.register_forward_hook(_after, always_call=True),
    ]

    def undo() -> None:
        for each in handles:
            each.remove()

    return undo


def _before(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if torch.compiler.is_compiling() or _local.computing or transforming():
        return None
    asked = "need_weights" in kwargs or len(args) > _NEED_WEIGHTS
    if asked or (module.training and module.dropout > 0.0):  # the weights that torch returns are after dropout
        return None
    _local.calls.append((module, args, dict(kwargs)))
    return args, {**kwargs, "need_weights": False}


def _after(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
    calls = _local.calls
    if not calls or calls[-1][0] is not module or _local.computing:
        return None
    _, given, named = calls.pop()
    if not isinstance(output, tuple) or len(output) != 2 or output[1] is not None:
        return None
    return output[0], _Weights.later(module, given, named)


class _Weights(torch.Tensor):
    """Attention weights that are computed at the first use."""

    _made: torch.Tensor | None
    _call: tuple[nn.Module, tuple[Any, ...], dict[str, Any], bool, tuple[tuple[torch.Tensor, int], ...]]

    @staticmethod
    def later(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Weights:
        made = torch.Tensor._make_subclass(_Weights, torch.empty(0))
        looked_at = [
            *module.parameters(),
            *(each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)),
        ]
        versions = tuple((each, each._version) for each in looked_at if not each.is_inference())
        vars(made).update(_made=None, _call=(module, args, kwargs, torch.is_grad_enabled(), versions))
        return made

    def _values(self) -> torch.Tensor:
        found: torch.Tensor | None = vars(self)["_made"]
        if found is None:
            module, args, kwargs, recorded, versions = vars(self)["_call"]
            if any(each._version != version for each, version in versions):
                raise UsageError(
                    "attention weights are looked at after what they are computed from has changed.",
                    looked_at="the mode computes them when they are first looked at",
                    do="look at them before the next step, or call the module with need_weights=True",
                )
            _local.computing = True
            try:
                with torch.set_grad_enabled(recorded):
                    found = module(*args, **kwargs)[1]
            finally:
                _local.computing = False
            vars(self).update(_made=found, _call=None)
        assert found is not None
        return found

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def plain(value: Any) -> Any:
            if type(value) is _Weights:
                return value._values()
            if type(value) in (tuple, list):
                return type(value)(map(plain, value))
            return value

        return func(*map(plain, args), **{name: plain(each) for name, each in (kwargs or {}).items()})


def why_not_fused(device: Device) -> str:
    """Reason why scaled_dot_product_attention has no fused path on a device with torch's settings; "" if it has one."""
    try:
        dtype = device.best_dtype()
        with needs_memory(device, "try attention on it"):
            sample = torch.ones(1, 2, 64, 64, dtype=dtype, device=device.torch_device)
            chosen = torch._fused_sdp_choice(sample, sample, sample)
    except DeviceFullError:
        raise
    except (RuntimeError, NotImplementedError) as error:  # the device's own software refuses
        return f"{type(error).__name__}: {error}".splitlines()[0]
    # the name in torch.nn.attention.SDPBackend
    return "" if chosen > 0 else f"scaled_dot_product_attention: math, {str(dtype).removeprefix('torch.')}"

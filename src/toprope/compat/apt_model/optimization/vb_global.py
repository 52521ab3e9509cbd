"""Facade module `apt_model.optimization.vb_global`: "Virtual Blackwell", a memory mode for a whole program.

A mode acts on every model that is built, moved or called while it is enabled, by `toprope.tiers.modes`: weights that do
not fit the device are offloaded and fetched, attention is torch's own, and, where the mode has it, weights are
quantised, products are computed in bf16, and blocks are computed again in backward. `disable()` undoes all of it. What
it reports as active is active.

Where ENABLE_VIRTUAL_BLACKWELL is 1, true or yes, importing this module enables the mode that VB_MODE names: balanced
(the default), speed, memory or full. Under `toprope run`, toprope.compat.modes_import imports it with torch. Otherwise
importing it prints nothing and changes nothing. tests/compat/test_apt_vb_global.py holds names and results.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from toprope.device import Device
from toprope.errors import UnsupportedError, UsageError
from toprope.tiers import modes
from toprope.tiers.modes.attention import why_not_fused

from .._choice import best
from .vb_estimate import estimate, estimate_text
from .vgpu_stack import VGPUStack

__all__ = [
    "disable",
    "enable",
    "enable_balanced_mode",
    "enable_full_optimization",
    "enable_memory_mode",
    "enable_speed_mode",
    "estimate_model_resources",
    "get_config",
    "get_stack",
    "get_stats",
    "is_enabled",
    "optimize_model",
    "print_stats",
]

# the signs are part of what the original prints
_TITLES = {
    "cuda": "\N{LARGE GREEN CIRCLE} NVIDIA GPU",
    "npu": "\N{LARGE YELLOW CIRCLE} 华为昇腾NPU",
    "cpu": "\N{LARGE BLUE CIRCLE} CPU",
}
_OTHER_TITLE = "\N{MEDIUM WHITE CIRCLE} "
_YES, _NO = "\N{WHITE HEAVY CHECK MARK} 启用", "\N{CROSS MARK} 禁用"
_ROWS = {
    "use_fp4": "FP4量化:         ",
    "use_flash_attn": "Flash Attention: ",
    "mixed_precision": "混合精度:        ",
    "gradient_checkpointing": "梯度检查点:      ",
    "activation_offload": "激活值卸载:      ",
    "auto_estimate": "自动估算:        ",
}
_OFF = dict.fromkeys(_ROWS, False) | {"verbose": True}
_EFFECTS = {
    "use_fp4": "quantise",
    "use_flash_attn": "attention",
    "mixed_precision": "mixed",
    "gradient_checkpointing": "recompute",
    "activation_offload": "offload",
}
"""Their names in `toprope.tiers.modes`."""


@dataclass(frozen=True)
class _Active:
    stack: VGPUStack | None
    config: Mapping[str, bool]


_lock = threading.RLock()
_active = _Active(None, _OFF)


def enable(
    use_fp4: bool = False,
    use_flash_attn: bool = False,
    mixed_precision: bool = False,
    gradient_checkpointing: bool = False,
    auto_estimate: bool = True,
    vgpu_config: Mapping[str, Any] | None = None,
    verbose: bool = True,
) -> None:
    """Have these effects act on every model from now on, in place of those before, and make the stack of levels.

    Args:
        use_fp4: weights of linear layers are kept in 4 bits while they get no gradients.
        use_flash_attn: attention goes through scaled_dot_product_attention, whose fused path must be in force.
        mixed_precision: products are computed in bf16.
        gradient_checkpointing: blocks are computed again in backward.
        auto_estimate: whether `optimize_model` prints what the model takes.
        vgpu_config: the levels, as for `create_vgpu_stack`: the first is the budget of the device, "cpu" the host's,
            "ssd" the disk's; or {"device": "25%", "host": "64GB", "disk": "/folder"}. Without one
            TOPROPE_DEVICE_MEMORY counts, else what is free.
        verbose: whether to print what is active.

    Raises:
        ModeUnavailable: products in 4 bits are not faster here, or the device does not multiply bf16; nothing changed.
            With TOPROPE_FALLBACK=1 it is one warning.
        UnsupportedError: the fused attention is not in force on the device; nothing changed.
        TopropeError: as for `create_vgpu_stack`.
    """
    device = best()
    why_not = why_not_fused(device) if use_flash_attn else ""
    if why_not:
        raise UnsupportedError(
            f"torch's fused attention is not in force on {device}.",
            looked_at=why_not,
            do="see torch.backends.cuda.enable_flash_sdp and sdpa_kernel, or leave use_flash_attn out",
        )
    effects = modes.Effects(
        attention=use_flash_attn, recompute=gradient_checkpointing, mixed=mixed_precision, quantise=use_fp4
    )
    _start(device, effects, vgpu_config, verbose, auto_estimate)


def enable_balanced_mode() -> None:
    """Enable the lossless mode: weights that do not fit the device are offloaded, and attention is torch's own."""
    _start_mode("balanced")


def enable_speed_mode() -> None:
    """Enable 4-bit weights in inference, where they are faster on this machine.

    Raises:
        ModeUnavailable: it is not; nothing changed.
    """
    _start_mode("speed")


def enable_memory_mode() -> None:
    """Enable the balanced mode, and recompute blocks in backward, offload activations, and compute products in bf16.

    Raises:
        ModeUnavailable: the device does not multiply bf16; nothing changed.
    """
    _start_mode("memory")


def enable_full_optimization() -> None:
    """Enable all of the memory mode, and 4-bit weights in inference.

    Raises:
        ModeUnavailable: products in 4 bits are not faster here, or the device does not multiply bf16; nothing changed.
    """
    _start_mode("full")


def disable() -> None:
    """Disable the mode: models are as they were, and the stack is released. Prints a line."""
    global _active
    with _lock:
        if _active.stack is not None:
            modes.disable()
        _active = _Active(None, _OFF)
    print("虚拟Blackwell已禁用")  # noqa: T201 - as the original does


def is_enabled() -> bool:
    """True if it is enabled."""
    return _active.stack is not None


def get_stack() -> VGPUStack | None:
    """The stack of memory levels; None when disabled."""
    return _active.stack


def get_config() -> dict[str, bool]:
    """The active settings, as a copy; all but `verbose` is False when disabled.

    Returns:
        use_fp4, use_flash_attn, mixed_precision, gradient_checkpointing, activation_offload, auto_estimate, verbose.
    """
    return dict(_active.config)


def get_stats() -> dict[str, Any]:
    """The figures of the stack, as `VGPUStack.get_stats` gives them, and "models": what was done to which model.

    {} when disabled.
    """
    stack, mode = _active.stack, modes.active()
    return {} if stack is None else {**stack.get_stats(), "models": [] if mode is None else mode.models()}


def print_stats() -> None:
    """Print the figures of the stack, or that it is not enabled."""
    stack = _active.stack
    if stack is None:
        print("虚拟Blackwell未启用")  # noqa: T201 - what the call is for
    else:
        stack.print_stats()


def optimize_model(model: torch.nn.Module, model_name: str = "model") -> torch.nn.Module:
    """Have what is enabled act on a model now, and not at its next call. The same model, with its own weights.

    Args:
        model: any module; it needs no `config`.
        model_name: what it is called in what is printed.

    Raises:
        UsageError: nothing is enabled.
        PlanError: the model cannot fit into the budgets.
    """
    if _active.stack is None:
        raise UsageError(
            f"{model_name} cannot be optimised: nothing is enabled.", do="call enable_balanced_mode() before"
        )
    if _active.config["auto_estimate"] and _active.config["verbose"]:
        print(estimate_text(model_name, estimate(model)))  # noqa: T201 - as the original does
    return modes.optimize(model)


def estimate_model_resources(model_config: Any, batch_size: int = 8) -> dict[str, Any]:
    """Memory of a model in training, in MiB: of a module counted, of a configuration estimated.

    Args:
        model_config: a module; or a mapping or an object with vocab_size, hidden_size and num_layers, in the spelling
            of transformers or of apt_model.
        batch_size: sequences at a time, for the activations.

    Returns:
        parameters, weights_mb, gradients_mb, optimizer_mb, activations_mb (None of a module), total_mb, source.

    Raises:
        UsageError: the configuration lacks a figure.
    """
    found = estimate(model_config, batch_size)
    if _active.config["verbose"]:
        print(estimate_text("model", found))  # noqa: T201 - as the original does
    return found


def _start_mode(name: str) -> None:
    device = best()
    effects, reasons = modes.MODES[name], {}
    if effects.attention:
        reasons["use_flash_attn"] = why_not_fused(device)
    _start(device, name, None, True, True, reasons)


def _start(
    device: Device,
    mode: str | modes.Effects,
    vgpu_config: Mapping[str, Any] | None,
    verbose: bool,
    auto_estimate: bool,
    reasons: Mapping[str, str] | None = None,
) -> None:
    """Enable the mode and make the stack, then show both. `reasons`: why what was asked for is not active."""
    global _active
    with _lock:
        has_levels = vgpu_config is not None and "levels" in vgpu_config
        stack = VGPUStack(vgpu_config if has_levels else None, verbose=False)
        active = modes.enable(mode, config=vgpu_config, on=device)
        names = {effect: name for name, effect in _EFFECTS.items()}
        why = {name: text for name, text in (reasons or {}).items() if text}
        why |= {names[effect]: text for effect, text in active.reasons.items()}
        config = _OFF | {name: getattr(active.effects, effect) for name, effect in _EFFECTS.items()}
        config |= dict.fromkeys(why, False) | {"auto_estimate": auto_estimate, "verbose": verbose}
        _active = _Active(stack, config)
    if verbose:
        if config["use_fp4"] and active.verdict is not None:
            why["use_fp4"] = active.verdict.text
        stack.print_levels()
        print("\n".join(_banner(device, config, why)))  # noqa: T201 - as the original does


def _banner(device: Device, config: Mapping[str, bool], reasons: Mapping[str, str]) -> Iterator[str]:
    line = "=" * 70
    yield from ("", line, "\N{ROCKET} 虚拟Blackwell已全局启用", line)
    yield f"加速设备:        {_TITLES.get(device.kind, _OTHER_TITLE + device.name)}"
    for name, row in _ROWS.items():
        reason = reasons.get(name)
        yield row + (_YES if config[name] else _NO) + (f"（{reason}）" if reason else "")
    yield line + "\n"


def _follow_environment() -> None:
    """Enable what the variables ask for.

    Raises:
        SettingError: a variable cannot be read.
        ModeUnavailable: the mode cannot act here.
    """
    mode = modes.asked_for(os.environ)
    if mode is not None:
        _start_mode(mode)
        text = f"\N{WHITE HEAVY CHECK MARK} 通过环境变量自动启用虚拟Blackwell ({mode}模式)"
        print(text)  # noqa: T201 - as the original does


_follow_environment()

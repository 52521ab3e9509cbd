"""`apt_model.optimization.vb_global`: "Virtual Blackwell" for a whole program. What it shows is what is active.

Active so far: the stack of memory levels (`get_stack`), and torch's fused attention where the device has it. FP4,
mixed precision and gradient checkpointing are applied to a model by `optimize_model`, which comes later: what needs
them raises UnsupportedError and changes nothing.

Where ENABLE_VIRTUAL_BLACKWELL is 1, true or yes, importing this module enables the mode that VB_MODE names: balanced
(the default), speed, memory or full. Otherwise importing it prints nothing and changes nothing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from toprope.device import Device
from toprope.errors import SettingError, UnsupportedError

from .._choice import best
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

SWITCH, MODE = "ENABLE_VIRTUAL_BLACKWELL", "VB_MODE"
_SWITCH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
_NAMES = {"use_fp4": "FP4", "mixed_precision": "mixed precision", "gradient_checkpointing": "gradient checkpointing"}
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
    "auto_estimate": "自动估算:        ",
}
_OFF = dict.fromkeys(_ROWS, False) | {"verbose": True}
_LATER = "optimize_model 尚未提供"
_NO_ESTIMATE = "estimate_model_resources 尚未提供"


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
    """Make the stack of memory levels for this program, in place of one made before.

    Args:
        use_flash_attn: torch's fused attention must be in force on the device.
        use_fp4, mixed_precision, gradient_checkpointing: not there yet.
        auto_estimate: without effect until `estimate_model_resources` is there, and shown so.
        vgpu_config: the levels, as for `create_vgpu_stack`.
        verbose: whether to print what is active.

    Raises:
        UnsupportedError: what is asked for is not there; nothing changed.
        TopropeError: as for `create_vgpu_stack`.
    """
    asked = {
        "use_fp4": use_fp4,
        "mixed_precision": mixed_precision,
        "gradient_checkpointing": gradient_checkpointing,
    }
    missing = [name for name, wanted in asked.items() if wanted]
    if missing:
        raise UnsupportedError(
            f"{' and '.join(_NAMES[name] for name in missing)} cannot be applied to models yet.",
            looked_at=f"{', '.join(f'{name}=True' for name in missing)}; optimize_model, which applies it, is missing",
            do="use enable_balanced_mode(), which says what of it is active, or enable() without it",
        )
    device = best()
    why_not = _why_no_fused_attention(device) if use_flash_attn else ""
    if why_not:
        raise UnsupportedError(
            f"torch's fused attention is not in force on {device}.",
            looked_at=why_not,
            do="see torch.backends.cuda.enable_flash_sdp and sdpa_kernel, or leave use_flash_attn out",
        )
    _start(device, use_flash_attn, vgpu_config, verbose, {"auto_estimate": _NO_ESTIMATE} if auto_estimate else {})


def enable_balanced_mode() -> None:
    """Enable what of the balanced mode is there: the stack, and fused attention where the device has it.

    Its mixed precision is not there yet; what is printed says so, and `get_config()` too.
    """
    device = best()
    why_not = _why_no_fused_attention(device)
    reasons = {"mixed_precision": _LATER, "auto_estimate": _NO_ESTIMATE, "use_flash_attn": why_not}
    _start(device, not why_not, None, True, reasons)


def enable_speed_mode() -> None:
    """The speed mode is FP4, which is not there yet.

    Raises:
        UnsupportedError: always; nothing changed.
    """
    enable(use_fp4=True)


def enable_memory_mode() -> None:
    """The memory mode is mixed precision and gradient checkpointing, which are not there yet.

    Raises:
        UnsupportedError: always; nothing changed.
    """
    enable(use_flash_attn=True, mixed_precision=True, gradient_checkpointing=True)


def enable_full_optimization() -> None:
    """Everything: FP4, mixed precision and gradient checkpointing are not there yet.

    Raises:
        UnsupportedError: always; nothing changed.
    """
    enable(use_fp4=True, use_flash_attn=True, mixed_precision=True, gradient_checkpointing=True)


def disable() -> None:
    """Let go of the stack, and say so. Tensors that the program still holds stay its own."""
    global _active
    with _lock:
        _active = _Active(None, _OFF)
    print("虚拟Blackwell已禁用")  # noqa: T201 - as the original does


def is_enabled() -> bool:
    """Whether it is enabled."""
    return _active.stack is not None


def get_stack() -> VGPUStack | None:
    """The stack of memory levels; None when disabled."""
    return _active.stack


def get_config() -> dict[str, bool]:
    """What is active, as a copy; all but `verbose` is False when disabled.

    Returns:
        use_fp4, use_flash_attn, mixed_precision, gradient_checkpointing, auto_estimate, verbose.
    """
    return dict(_active.config)


def get_stats() -> dict[str, Any]:
    """The figures of the stack, as `VGPUStack.get_stats` gives them; {} when disabled."""
    stack = _active.stack
    return {} if stack is None else stack.get_stats()


def print_stats() -> None:
    """Print the figures of the stack, or that it is not enabled."""
    stack = _active.stack
    if stack is None:
        print("虚拟Blackwell未启用")  # noqa: T201 - what the call is for
    else:
        stack.print_stats()


def optimize_model(model: torch.nn.Module, model_name: str = "model") -> torch.nn.Module:
    """Apply what is enabled to a model: not there yet.

    Raises:
        UnsupportedError: always; the model is as it was.
    """
    raise UnsupportedError(
        f"optimize_model is not there yet, {model_name} is as it was.",
        looked_at="weights on several levels, FP4, mixed precision and gradient checkpointing are missing",
        do="use VGPUStackLinear for layers whose weights live in the stack, and torch.autocast for mixed precision",
    )


def estimate_model_resources(model_config: Any, batch_size: int = 8) -> None:
    """Estimate what a model takes: not there yet.

    Raises:
        UnsupportedError: always.
    """
    raise UnsupportedError(
        "estimate_model_resources is not there yet.",
        looked_at="the planner of a model's memory is missing",
        do="run the model once, and see get_memory_summary() of its backend",
    )


def _start(
    device: Device, flash: bool, vgpu_config: Mapping[str, Any] | None, verbose: bool, reasons: Mapping[str, str]
) -> None:
    """Make the stack and take it into force, then show it. `reasons`: why what was asked for is not active."""
    global _active
    with _lock:
        stack = VGPUStack(vgpu_config, verbose=verbose)
        config = _OFF | {"use_flash_attn": flash, "verbose": verbose}
        _active = _Active(stack, config)
    if verbose:
        print("\n".join(_banner(device, config, reasons)))  # noqa: T201 - as the original does


def _banner(device: Device, config: Mapping[str, bool], reasons: Mapping[str, str]) -> Iterator[str]:
    line = "=" * 70
    yield from ("", line, "\N{ROCKET} 虚拟Blackwell已全局启用", line)
    yield f"加速设备:        {_TITLES.get(device.kind, _OTHER_TITLE + device.name)}"
    for name, row in _ROWS.items():
        reason = reasons.get(name)
        yield row + (_YES if config[name] else _NO) + (f"（{reason}）" if reason else "")
    yield line + "\n"


def _why_no_fused_attention(device: Device) -> str:
    """Why scaled_dot_product_attention would not take a fused path on a device as torch is set now; "" if it would."""
    try:
        dtype = device.best_dtype()
        sample = torch.ones(1, 2, 64, 64, dtype=dtype, device=device.torch_device)
        chosen = torch._fused_sdp_choice(sample, sample, sample)
    except (RuntimeError, NotImplementedError) as error:  # the device's own software refuses
        return f"{type(error).__name__}: {error}".splitlines()[0]
    # what torch.nn.attention.SDPBackend calls them
    return "" if chosen > 0 else f"scaled_dot_product_attention: math, {str(dtype).removeprefix('torch.')}"


_MODES: dict[str, Callable[[], None]] = {
    "full": enable_full_optimization,
    "speed": enable_speed_mode,
    "memory": enable_memory_mode,
    "balanced": enable_balanced_mode,
}


def _follow_environment() -> None:
    """Enable what the variables ask for.

    Raises:
        SettingError: a variable cannot be read.
        UnsupportedError: the mode is not there yet.
    """
    text = os.environ.get(SWITCH, "").strip()
    wanted = _SWITCH.get(text.lower()) if text else False
    if wanted is None:
        raise SettingError(
            f"{text!r} is not a truth value.", looked_at=f"{SWITCH}={text}", do="give 1, or leave it out"
        )
    if not wanted:
        return
    mode = os.environ.get(MODE, "").strip().lower() or "balanced"
    if mode not in _MODES:
        raise SettingError(f"there is no mode {mode!r}.", looked_at=f"{MODE}={mode}", do=f"give {', '.join(_MODES)}")
    _MODES[mode]()
    text = f"\N{WHITE HEAVY CHECK MARK} 通过环境变量自动启用虚拟Blackwell ({mode}模式)"
    print(text)  # noqa: T201 - as the original does


_follow_environment()

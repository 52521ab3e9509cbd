"""Part of `torch.npu`: settings of the operators' compilation and arithmetic, kept and read back.

The simulated card computes on the host in the dtype it is given, so none changes a result, except HF32 under
`numerics=card`. Tests: tests/sim/simulated/test_npu_settings.py, and test_numerics.py there for HF32.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping
from enum import IntEnum
from typing import Any

from toprope.sim.native import native
from toprope.sim.npu._state import PARAMETER, TYPE, chip, lazy_init, message, not_here
from toprope.sim.npu.devices import is_initialized, synchronize
from toprope.sim.npu.limits import (
    get_device_limit,
    get_stream_limit,
    reset_stream_limit,
    set_device_limit,
    set_stream_limit,
)
from toprope.sim.state import installed

__all__ = [
    "CubeMathType",
    "are_compatible_impl_enabled",
    "config",
    "conv",
    "get_device_limit",
    "get_stream_limit",
    "is_jit_compile_false",
    "matmul",
    "reset_stream_limit",
    "set_compile_mode",
    "set_device_limit",
    "set_option",
    "set_stream_limit",
    "use_compatible_impl",
]

# The names that torch_npu 2.13 registers (REGISTER_OPTION... in torch_npu/csrc), and the values its Python side allows.
_FREE = (
    "ACL_DEBUG_DIR",
    "ACL_OPTYPELIST_FOR_IMPLMODE",
    "ACL_OP_COMPILER_CACHE_DIR",
    "ACL_OP_DEBUG_OPTION",
    "ALLOW_CONV_HF32",
    "ALLOW_INTERNAL_FORMAT",
    "ALLOW_MATMUL_HF32",
    "CUBE_MATH_TYPE",
    "FORCE_ACLNN_OP_LIST",
    "MM_BMM_ND_ENABLE",
    "NPU_FUZZY_COMPILE_BLACKLIST",
    "OP_HOOK_ENABLE",
    "STRONG_CONSISTENCY",
    "TORCH_NPU_USE_COMPATIBLE_IMPL",
    "autotune",
    "autotunegraphdumppath",
    "bmmv2_enable",
    "jitCompile",
    "jitCompileInit",
    "mdldumpconfigpath",
    "mdldumpswitch",
)
_OPTIONS: dict[str, Collection[str] | None] = dict.fromkeys(_FREE) | {
    "ACL_AICORE_NUM": tuple(str(number) for number in range(1, 33)),
    "ACL_OP_COMPILER_CACHE_MODE": ("disable", "enable", "force"),
    "ACL_OP_DEBUG_LEVEL": ("0", "1", "2", "3", "4"),
    "ACL_OP_SELECT_IMPL_MODE": ("high_performance", "high_precision"),
    "ACL_PRECISION_MODE": ("allow_fp32_to_fp16", "must_keep_origin_dtype"),
}
_DEPRECATED = ("ACL_OPTYPELIST_FOR_IMPLMODE", "ACL_OP_SELECT_IMPL_MODE")

_ONLY_OFF = ("ALLOW_INTERNAL_FORMAT", "jitCompile")
"""Options that cannot be switched on from the 950 on."""

_FIRST_WITHOUT = 260
_FIRST_PRECOMPILED = 220
"""SocVersions: the 950, and the 910B1, from which on operators come compiled."""

_values: dict[str, str] = {}

_HF32 = 11
"""Bits of its mantissa, by the vendor's page of --allow_hf32; float16 has 10."""


class CubeMathType(IntEnum):
    """How cube cores compute in float32."""

    KEEP_DTYPE = 0
    ALLOW_FP32_DOWN_PRECISION = 1
    USE_FP16 = 2
    USE_HF32 = 3
    FORCE_GRP_ACC_FOR_FP32 = 4
    USE_FP32_ADD = 4


def _keep(options: dict[str, str]) -> None:
    for name, value in options.items():
        if not isinstance(name, str):
            raise TypeError(message("option name is nullptr or is not string.", TYPE))
        if name not in _OPTIONS:
            raise RuntimeError(f"invalid npu option name:{name}")
        if name in _ONLY_OFF and value == "enable" and (chip().soc_version or 0) >= _FIRST_WITHOUT:
            warnings.warn(f"This chip does not have {name}: it stays off.", stacklevel=4)
            options = {**options, name: "disable"}
    tell_units({**_values, **options})
    _values.update(options)


def tell_units(values: Mapping[str, str] = _values) -> None:
    """Tell the core how the cube units take float32: as a card does with these options, with `numerics=card`.

    Raises:
        NotImplementedError: they ask for an arithmetic that is not known.
    """
    if (spec := installed()) is None or spec.numerics != "card":
        return
    # op-plugin's OpUtils.cpp: cube_math_type, where it is set, goes before allow_hf32
    named = values.get("CUBE_MATH_TYPE") or str(int(_matmul_takes_hf32(values)))
    products = {"0": 0, "1": _HF32, "3": _HF32}.get(named)
    if products is None:
        raise not_here(f"matmul.cube_math_type = {CubeMathType(int(named)).name}", "numerics=card knows HF32 alone")
    native().keep_bits(products, _HF32 if _conv_takes_hf32(values) else 0)


def _matmul_takes_hf32(values: Mapping[str, str] = _values) -> bool:
    return values.get("ALLOW_MATMUL_HF32") == "enable"


def _conv_takes_hf32(values: Mapping[str, str] = _values) -> bool:
    return values.get("ALLOW_CONV_HF32", "") in ("", "enable")


def kept_option(name: str) -> str | None:
    """Value of an option; None if it was not set."""
    return _values.get(name)


def set_option(option: dict[str, Any]) -> None:
    """Set options of the operators by name; all values become str, also in the caller's dictionary.

    Raises:
        TypeError: it is no dictionary, or a name no str.
        ValueError: an option does not have that value.
        RuntimeError: there is no option of a name.
    """
    if not isinstance(option, dict):
        raise TypeError(message("npu option must be a dict.", PARAMETER))
    for name, value in option.items():
        allowed = _OPTIONS.get(name)
        if allowed is not None and str(value) not in allowed:
            raise ValueError(
                message(f"value of {name} should be in {list(allowed)} but got {value}", PARAMETER),
            )
        option[name] = str(value)
        if name in _DEPRECATED:
            warnings.warn(f"The option {name} is deprecated in torch_npu.", stacklevel=2)
    _keep(option)


def set_compile_mode(jit_compile: bool = False) -> None:
    """Set whether operators are compiled at their first use; waits for the current card's work first."""
    if is_initialized():
        synchronize()
    _keep({"jitCompile": "enable" if jit_compile else "disable"})


def is_jit_compile_false() -> bool:
    """Return True if operators come compiled; so unless set otherwise from the 910B on."""
    lazy_init()
    default = "disable" if (chip().soc_version or 0) >= _FIRST_PRECOMPILED else "enable"
    return _values.get("jitCompile", default) == "disable"


def _check_bool(value: object) -> None:
    if not isinstance(value, bool):
        raise TypeError(message(f"allow_hf32 must be a bool, but got {type(value).__name__}", TYPE))


def use_compatible_impl(is_enable: Any) -> None:
    """Set whether operators whose two implementations differ take the one that is compatible with torch's."""
    _keep({"TORCH_NPU_USE_COMPATIBLE_IMPL": "1" if is_enable else "0"})


def are_compatible_impl_enabled() -> bool:
    """Return True if compatible implementations are set; the simulated card has one of each operator."""
    return _values.get("TORCH_NPU_USE_COMPATIBLE_IMPL") == "1"


class _Settings:
    """Attributes that set options. As in torch_npu, an unknown attribute is not kept and reads as None."""

    _readable: dict[str, Callable[[], Any]]
    _settable: dict[str, Callable[[Any], None]]

    def __init__(self, settable: dict[str, Callable[[Any], None]], readable: dict[str, Callable[[], Any]]) -> None:
        object.__setattr__(self, "_settable", settable)
        object.__setattr__(self, "_readable", readable)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._settable:
            self._settable[name](value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._readable[name]() if name in self._readable else None


class _WriteOnly(_Settings):
    """As torch_npu's `config`: it can be set and not be read."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"torch.npu.config.{name} can be set and not be read, as in torch_npu")


def _set_hf32(option: str) -> Callable[[Any], None]:
    def set_hf32(value: Any) -> None:
        _check_bool(value)
        _keep({option: "enable" if value else "disable"})

    return set_hf32


def _set_cube_math_type(value: Any) -> None:
    if not isinstance(value, CubeMathType):
        raise TypeError(f"value should be one of Enum CubeMathType when setting cube_math_type, but got {type(value)}")
    _keep({"CUBE_MATH_TYPE": str(value.value)})


def _cube_math_type() -> CubeMathType | None:
    value = _values.get("CUBE_MATH_TYPE", "")
    return CubeMathType(int(value)) if value else None


def _set_internal_format(value: Any) -> None:
    _keep({"ALLOW_INTERNAL_FORMAT": "enable" if value else "disable"})


def internal_format_is_allowed() -> bool:
    """Return True if tensors may have the chip's own formats: only after the program allowed it, as with torch_npu."""
    return _values.get("ALLOW_INTERNAL_FORMAT") == "enable"


config = _WriteOnly({"allow_internal_format": _set_internal_format}, {})
"""allow_internal_format: whether tensors may have the chip's own formats, of which only the numbers are kept."""

matmul = _Settings(
    {"allow_hf32": _set_hf32("ALLOW_MATMUL_HF32"), "cube_math_type": _set_cube_math_type},
    {"allow_hf32": _matmul_takes_hf32, "cube_math_type": _cube_math_type},
)
"""allow_hf32 (False), cube_math_type (None): the arithmetic of matrix products."""

conv = _Settings(
    {"allow_hf32": _set_hf32("ALLOW_CONV_HF32")},
    {"allow_hf32": _conv_takes_hf32},
)
"""allow_hf32 (True): the arithmetic of convolutions."""

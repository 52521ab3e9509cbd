"""Module `torch.npu.backends`: the switches of _backends.py under the name that torch_npu had for them first.

Tests: tests/sim/simulated/test_npu_names.py.
"""

from toprope.sim.npu._backends import (
    enable_flash_sdp,
    enable_math_sdp,
    enable_mem_efficient_sdp,
    flash_sdp_enabled,
    math_sdp_enabled,
    mem_efficient_sdp_enabled,
    preferred_linalg_library,
    sdp_kernel,
)
from toprope.sim.npu._fft_plan_cache import fft_plan_cache

__all__ = [
    "enable_flash_sdp",
    "enable_math_sdp",
    "enable_mem_efficient_sdp",
    "fft_plan_cache",
    "flash_sdp_enabled",
    "math_sdp_enabled",
    "mem_efficient_sdp_enabled",
    "preferred_linalg_library",
    "sdp_kernel",
]

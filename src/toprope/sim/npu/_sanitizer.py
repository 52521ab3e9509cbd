"""Module `torch_npu.npu._sanitizer`: switch the checks of streams or of kernels on (TORCH_NPU_SANITIZER).

The checks are _stream_check.py and _kernel_check.py. Tests: tests/sim/simulated/test_sanitizer.py.
"""

from __future__ import annotations

import atexit
import os
from typing import Any

import torch_npu.utils._npu_trace as npu_trace  # type: ignore[import-not-found]
from torch_npu.utils.utils import _print_warn_log  # type: ignore[import-not-found]

import toprope.sim.npu._kernel_check as kernel_check
import toprope.sim.npu._stream_check as stream_check
from toprope.sim.npu._state import one_module

__all__ = ["NPUSanitizer", "SanitizerMode", "enable_npu_sanitizer", "npu_sanitizer"]

one_module(__name__)

_OF_STREAMS = (
    "event_creation", "event_deletion", "event_record", "event_wait", "memory_allocation", "memory_deallocation",
    "stream_creation", "device_synchronization", "stream_synchronization", "event_synchronization", "record_stream",
    "erase_stream",
)  # fmt: skip


class SanitizerMode:
    """Checks of the sanitizer."""

    STREAM = 0
    KERNEL = 1


class NPUSanitizer:
    """The checks of a process.

    Attributes:
        mode: `SanitizerMode.KERNEL` where ASCEND_OPP_DEBUG_PATH is set, else STREAM.
        event_handler: what has been seen so far, None while nothing is checked.
        dispatch: the mode through which operators are seen.
    """

    def __init__(self) -> None:
        self.event_handler: Any = None
        self.dispatch: Any = None
        self.kernel_path_manager: Any = None
        self.mode = SanitizerMode.STREAM
        self.opp_debug_path = os.path.join(os.getcwd(), "opp_debug_path")
        self.opp_debug_kernel_path = os.environ.get("ASCEND_OPP_DEBUG_PATH")
        self.enabled = False

    def enable(self) -> None:
        """Begin to check."""
        if self.opp_debug_kernel_path:
            self.mode, began = SanitizerMode.KERNEL, self.enable_kernel_check()
        else:
            self.mode, began = SanitizerMode.STREAM, self.enable_stream_check()
        self.enabled = self.enabled or began

    def enable_kernel_check(self) -> bool:
        """Prepare the kernels for debugging; whether there are any."""
        if not self.opp_debug_kernel_path:
            _print_warn_log("ASCEND_OPP_DEBUG_PATH is not set! TORCH_NPU_SANITIZER takes no effect!")
            return False
        self.kernel_path_manager = kernel_check.KernelPathManager()
        if not os.path.exists(self.opp_debug_path):
            return False
        self.event_handler = kernel_check.EventHandler()
        self._register(("acl_start_execution", "acl_finish_execution"), "")
        return True

    def enable_stream_check(self) -> bool:
        """Look for races between streams from here on."""
        self.event_handler = stream_check.NPURecordStreamHandler()
        self.dispatch = stream_check.NPUSanitizerDispatchMode(self.event_handler)
        self.dispatch.__enter__()
        self._register(_OF_STREAMS, "npu_")
        return True

    def _register(self, events: tuple[str, ...], prefix: str) -> None:
        for event in events:
            register = getattr(npu_trace, f"register_callback_for_{prefix}{event}")
            register(getattr(self.event_handler, f"_handle_{event}"), f"handle_{event}")

    def __del__(self) -> None:
        try:
            if self.dispatch:
                self.dispatch.__exit__(None, None, None)
        except Exception:
            pass

    def clear_debug_env(self) -> None:
        """Remove what the check of kernels made."""
        if self.kernel_path_manager:
            self.kernel_path_manager.clear_debug_env()


def enable_npu_sanitizer() -> None:
    """Begin to check in this process."""
    npu_sanitizer.enable()


npu_sanitizer = NPUSanitizer()

atexit.register(npu_sanitizer.clear_debug_env)

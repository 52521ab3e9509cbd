"""Kernel mode of torch_npu's sanitizer: a copy of CANN's operators in which debug builds replace the others.

_sanitizer.py switches it on. The simulated card runs no such kernels; the folders are prepared all the same. Interface:
torch_npu's own module. Tests: tests/sim/simulated/test_sanitizer.py.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import traceback
from collections.abc import Callable
from pathlib import Path

import torch_npu.utils._npu_trace as npu_trace  # type: ignore[import-not-found]
from torch_npu.utils.utils import _print_error_log, _print_info_log, _print_warn_log  # type: ignore[import-not-found]

from toprope.sim.npu._state import one_module

__all__ = ["EventHandler", "KernelPathManager"]

one_module(__name__)

_KERNELS = "built-in/op_impl/ai_core/tbe/kernel"


class EventHandler:
    """Prints which operator runs, and where the program calls it."""

    def _handle_acl_start_execution(self, acl_name: str) -> None:
        npu_trace.print_check_msg(f"====== Start acl operator {acl_name}")

    def _handle_acl_finish_execution(self, acl_name: str) -> None:
        trace = traceback.StackSummary.extract(traceback.walk_stack(None), lookup_lines=False)
        trace.reverse()
        npu_trace.print_check_msg(f"====== {acl_name} python stack info:\n{''.join(trace.format())}")


class KernelPathManager:
    """Makes the copy of ASCEND_OPP_PATH with the kernels of ASCEND_OPP_DEBUG_PATH, and removes it."""

    def __init__(self) -> None:
        self.ascend_opp_path = os.environ.get("ASCEND_OPP_PATH", "")
        self.opp_debug_path = str(Path.cwd() / "opp_debug_path")
        self.opp_debug_kernel_path = os.environ.get("ASCEND_OPP_DEBUG_PATH", "")
        self.func_with_lock(self.make_opp_debug_path)
        os.environ["ASCEND_LAUNCH_BLOCKING"] = "1"
        os.environ["ASCEND_OPP_PATH"] = self.opp_debug_path

    @property
    def _lock_file(self) -> str:
        return str(Path.cwd() / "opp_debug.lock")

    def func_with_lock(self, func: Callable[[], None]) -> None:
        """Call a function while no other process does; not at all where one does."""
        with os.fdopen(os.open(self._lock_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode=0o600), "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                func()
            except OSError:
                _print_warn_log(f"Permission denied to execute {func}")
            finally:
                fcntl.flock(file, fcntl.LOCK_UN)

    def make_opp_debug_path(self) -> None:
        """Make the copy. Where a folder is missing, a line says which, and nothing is made."""
        for name, path in (
            ("ASCEND_OPP_PATH", self.ascend_opp_path),
            ("ASCEND_OPP_DEBUG_PATH", self.opp_debug_kernel_path),
        ):
            if not os.path.exists(path):
                _print_error_log(f"{name} is not exists.")
                return
        kernels = os.path.join(self.opp_debug_kernel_path, _KERNELS)
        if not os.path.exists(kernels):
            _print_warn_log("ASCEND_OPP_DEBUG_PATH is not valid kernel path.")
            return
        linked = os.path.join(self.opp_debug_path, _KERNELS)
        if os.path.islink(linked):
            os.unlink(linked)  # what it points to is not ours to remove
        shutil.rmtree(self.opp_debug_path, ignore_errors=True)
        shutil.copytree(self.ascend_opp_path, self.opp_debug_path)
        os.chmod(self.opp_debug_path, 0o750)
        shutil.rmtree(linked, ignore_errors=True)
        os.symlink(kernels, linked)

    def remove_debug_files(self) -> None:
        """Remove the copy; first the link in it."""
        os.unlink(os.path.join(self.opp_debug_path, _KERNELS))
        shutil.rmtree(self.opp_debug_path)

    def clear_debug_env(self) -> None:
        """Remove the copy, if there is one, and the file of the lock."""
        if not os.path.exists(self.opp_debug_path):
            return
        self.func_with_lock(self.remove_debug_files)
        try:
            os.remove(self._lock_file)
        except FileNotFoundError as error:
            _print_info_log(str(error))

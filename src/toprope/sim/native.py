"""The C functions of the simulator's native part, with their types: `native()` loads both shared objects.

All of toprope.sim that talks to C++ calls it, and so does every test on a card. A new C function in csrc/core/api.cpp
or csrc/torch needs its types here. Tests: tests/sim/test_simulated.py, whose every module calls them on a card.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_char_p, c_double, c_int, c_int64, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from toprope.errors import BuildError

__all__ = ["Native", "load", "native"]

TASK = ctypes.CFUNCTYPE(c_int, c_void_p)
"""A function that a stream can be given: it returns 0, or the code of its failure."""

BODY = ctypes.CFUNCTYPE(c_int, c_uint64, c_int)
"""The work of a kernel: its key, and 1 to run it or 0 to forget it; it returns as a `TASK` does."""

_loaded: list[Native] = []


def _open(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise _cannot_load(path, error) from error


def _cannot_load(path: Path, error: OSError) -> BuildError:
    return BuildError(
        "the simulator's build cannot be loaded.",
        str(error),
        f"remove {path.parent}; it is made again at the next start",
    )


class Native:
    """Both shared objects; each attribute is a C function of csrc/core/api.cpp or csrc/torch."""

    def __init__(self, core: Path, glue: Path) -> None:
        self._core = _open(core)
        import torch

        try:
            torch.ops.load_library(str(glue))  # type: ignore[no-untyped-call]
        except OSError as error:
            raise _cannot_load(glue, error) from error
        self._glue = _open(glue)

        get, core_lib = self._get, self._core
        self.configure = get(core_lib, "ts_configure", c_int, c_int, c_uint64, c_uint64)
        self.describe = get(core_lib, "ts_describe", None, c_char_p, c_char_p, c_int, c_char_p)
        self.keep_counters_in = get(core_lib, "ts_keep_counters_in", c_int, c_char_p)
        self.counters = get(core_lib, "ts_counters", c_void_p)
        self.note_lack = get(core_lib, "ts_note_lack", None, c_int, c_char_p, c_int, c_char_p)
        self.start_rehearsal = get(core_lib, "ts_start_rehearsal", c_int, c_int, c_uint64, c_char_p)
        self.stop_rehearsal = get(core_lib, "ts_stop_rehearsal", c_void_p, c_int)
        self.rehearsal = get(core_lib, "ts_rehearsal", c_void_p, c_int)
        self.mark_held = get(core_lib, "ts_mark_held", None, c_void_p, c_int)
        self.note_step = get(core_lib, "ts_note_step", None, c_int)
        self.note_runtime_memory = get(core_lib, "ts_note_runtime_memory", None, c_int, c_int64)
        self.note_to_come = get(core_lib, "ts_note_to_come", None, c_int, c_uint64, c_uint64)
        self.look_up = get(core_lib, "ts_look_up", c_uint64, c_uint64)
        self.look_up_as_before = get(core_lib, "ts_look_up_as_before", None, c_uint64)
        self.device_count = get(core_lib, "ts_device_count", c_int)
        self.use_cards = get(core_lib, "ts_use_cards", None)
        self.is_initialised = get(core_lib, "ts_is_initialised", c_int)
        self.physical_id = get(core_lib, "ts_physical_id", c_int, c_int)
        self.current_device = get(core_lib, "ts_current_device", c_int)
        self.set_device = get(core_lib, "ts_set_device", c_int, c_int)
        self.exchange_device = get(core_lib, "ts_exchange_device", c_int, c_int)
        self.forked_after_use = get(core_lib, "ts_forked_after_use", c_int)
        self.allocate = get(core_lib, "ts_allocate", c_int, c_int, c_int64, c_uint64, ctypes.POINTER(c_void_p))
        self.release = get(core_lib, "ts_release", None, c_void_p)
        self.erase_stream = get(core_lib, "ts_erase_stream", None, c_void_p, c_int64)
        self.device_of = get(core_lib, "ts_device_of", c_int, c_void_p)
        self.mark_all_unsafe = get(core_lib, "ts_mark_all_unsafe", None, c_int)
        self.is_safe = get(core_lib, "ts_is_safe", c_int, c_void_p)
        self.set_safe = get(core_lib, "ts_set_safe", None, c_void_p)
        self.check_unsafe = get(core_lib, "ts_check_unsafe", None, c_int)
        self.checks_unsafe = get(core_lib, "ts_checks_unsafe", c_int)
        self.empty_cache = get(core_lib, "ts_empty_cache", None, c_int)
        self.reset_peaks = get(core_lib, "ts_reset_peaks", None, c_int)
        self.reset_totals = get(core_lib, "ts_reset_totals", None, c_int)
        self.set_fraction = get(core_lib, "ts_set_fraction", None, c_int, c_double)
        self.fraction = get(core_lib, "ts_fraction", c_double, c_int)
        self.memory_stats = get(core_lib, "ts_memory_stats", None, c_int, ctypes.POINTER(c_int64))
        self.memory_snapshot = get(
            core_lib, "ts_memory_snapshot", ctypes.c_size_t, c_int, ctypes.POINTER(c_int64), ctypes.c_size_t
        )
        self.use_pool = get(core_lib, "ts_use_pool", None, c_int, c_int64)
        self.set_pool = get(core_lib, "ts_set_pool", None, c_int, c_int64, c_int, c_int)
        self.pool_users = get(core_lib, "ts_pool_users", c_int, c_int, c_int64)
        self.open_pool = get(core_lib, "ts_open_pool", None, c_int, c_int64, c_int)
        self.close_pool = get(core_lib, "ts_close_pool", None, c_int, c_int64)
        self.release_pool = get(core_lib, "ts_release_pool", None, c_int, c_int64)
        self.pool_state = get(core_lib, "ts_pool_state", c_void_p, c_int, c_int64)
        self.restore_pool = get(core_lib, "ts_restore_pool", c_int, c_int, c_int64, c_void_p)
        self.forget_pool_state = get(core_lib, "ts_forget_pool_state", None, c_void_p)
        self.pool_uses_only = get(
            core_lib, "ts_pool_uses_only", c_int, c_int, c_int64, ctypes.POINTER(c_uint64), ctypes.c_size_t
        )
        self.pool_of = get(core_lib, "ts_pool_of", c_int64, c_void_p)
        self.set_wait_limit_ms = get(core_lib, "ts_set_wait_limit_ms", None, ctypes.c_uint32)
        self.stop_device = get(core_lib, "ts_stop_device", None, c_int)
        self.restart_device = get(core_lib, "ts_restart_device", None, c_int)
        self.launch = get(core_lib, "ts_launch", c_int, c_int, c_int64, TASK, c_void_p)
        self.share_cards = get(core_lib, "ts_share_cards", c_int, c_char_p)
        self.taken_of_card = get(core_lib, "ts_taken_of_card", c_uint64, c_int)
        self.health_of_card = get(core_lib, "ts_health_of_card", c_int, c_int)
        self.state_of_device = get(core_lib, "ts_state_of_device", c_int, c_int)
        self.set_health_of_card = get(core_lib, "ts_set_health_of_card", None, c_int, c_int)
        self.start_trace = get(core_lib, "ts_start_trace", c_int, c_uint64, c_char_p)
        self.stop_trace = get(core_lib, "ts_stop_trace", c_void_p)
        self.forget_trace = get(core_lib, "ts_forget_trace", None)
        self.trace = get(core_lib, "ts_trace", c_void_p)
        self.keep_signatures = get(core_lib, "ts_keep_signatures", c_int, c_char_p)
        self.signatures = get(core_lib, "ts_signatures", c_void_p)
        self.is_tracing = get(core_lib, "ts_is_tracing", c_int)
        self.replay_graph = get(core_lib, "ts_replay_graph", None, c_int)
        self.is_part = get(core_lib, "ts_is_part", c_int)
        self.touch = get(core_lib, "ts_touch", c_int, c_int, c_void_p, c_uint64)
        self.set_cache = get(core_lib, "ts_set_cache", None, c_uint64)
        self.begin_composite = get(core_lib, "ts_begin_composite", c_int64)
        self.end_composite = get(
            core_lib, "ts_end_composite", None, c_char_p, c_int, c_int64, c_uint64, ctypes.POINTER(c_int64), c_int
        )
        self.now_ns = get(core_lib, "ts_now_ns", c_int64)
        self.note_collective = get(
            core_lib, "ts_note_collective", None, c_char_p, c_int, c_int64, c_int64, c_uint64, c_int, c_int,
            c_char_p, c_int, c_int, c_uint64,
        )  # fmt: skip
        self.note_collective_wait = get(
            core_lib, "ts_note_collective_wait", None, c_int, c_char_p, c_int, c_int, c_uint64
        )
        self.current_stream = get(core_lib, "ts_current_stream", c_int64, c_int)
        self.set_cores = get(core_lib, "ts_set_cores", None, c_int, c_int)
        self.set_limit = get(core_lib, "ts_set_limit", c_int, c_int, c_int64, c_int, c_int)
        self.limits = get(core_lib, "ts_limits", c_int, c_int, c_int64, ctypes.POINTER(c_int))
        self.limits_here = get(core_lib, "ts_limits_here", c_int, c_int, ctypes.POINTER(c_int))
        self.make_communicator = get(core_lib, "ts_make_communicator", c_int, c_char_p, ctypes.POINTER(c_int), c_int)
        self.forget_communicator = get(core_lib, "ts_forget_communicator", None, c_int)
        self.launch_kernel = get(
            core_lib, "ts_launch_kernel", c_int, c_int, c_int64, c_char_p, c_int, c_int, c_int, c_int, c_double,
            BODY, c_uint64,
        )  # fmt: skip
        self.set_discipline = get(core_lib, "ts_set_discipline", None, c_int)
        self.kernels = get(core_lib, "ts_kernels", ctypes.c_size_t, c_char_p, ctypes.c_size_t)
        self.explain_failure = get(core_lib, "ts_explain_failure", None, c_char_p)
        self.fail_operator = get(core_lib, "ts_fail_operator", None, c_char_p, c_int, c_uint64)
        self.fail_allocation = get(core_lib, "ts_fail_allocation", None, c_int64)
        self.slow_link = get(core_lib, "ts_slow_link", None, c_double)
        self.refuse_dtypes = get(core_lib, "ts_refuse_dtypes", None, c_char_p, c_uint64)
        self.refused_dtypes = get(core_lib, "ts_refused_dtypes", c_uint64, c_char_p)
        self.load_documents = get(core_lib, "ts_load_documents", c_int, c_char_p)
        self.obey_documents = get(core_lib, "ts_obey_documents", None, c_int)
        self.share = get(
            core_lib, "ts_share", c_int, c_void_p,
            ctypes.POINTER(c_int), ctypes.POINTER(c_uint64), ctypes.POINTER(c_uint64),
        )  # fmt: skip
        self.references = get(core_lib, "ts_references", c_uint64, c_void_p)
        self.seed_generators = get(self._glue, "tsg_seed_generators", None, c_uint64)
        self.host_memory_stats = get(self._glue, "tsg_host_memory_stats", None, ctypes.POINTER(c_int64))
        self.reset_host_memory_stats = get(self._glue, "tsg_reset_host_memory_stats", None, c_int)
        self.shrink_storage = get(self._glue, "tsg_shrink_storage", None, c_void_p, c_uint64)
        self.owns_memory = get(self._glue, "tsg_owns_memory", c_int, c_void_p)
        self.give_up_memory = get(self._glue, "tsg_give_up_memory", None, c_void_p)
        self.take_memory = get(self._glue, "tsg_take_memory", None, c_void_p)
        self.refuse_storage = get(self._glue, "tsg_refuse_storage", None, c_void_p, c_char_p)
        self.refuse_tensor = get(self._glue, "tsg_refuse_tensor", None, c_void_p, c_char_p)
        self.fft_plans = get(self._glue, "tsg_fft_plans", c_int64)
        self.most_fft_plans = get(self._glue, "tsg_most_fft_plans", c_int64)
        self.set_most_fft_plans = get(self._glue, "tsg_set_most_fft_plans", None, c_int64)
        self.forget_fft_plans = get(self._glue, "tsg_forget_fft_plans", None)
        self.set_sync_debug_mode = get(self._glue, "tsg_set_sync_debug_mode", None, c_int)
        self.keep_bits = get(self._glue, "tsg_keep_bits", None, c_int, c_int)
        self.watch_numbers = get(self._glue, "tsg_watch_numbers", None, c_int)
        self.check_composites = get(self._glue, "tsg_check_composites", None)
        self.set_refusal = get(self._glue, "tsg_set_refusal", None, c_char_p, c_int, c_char_p)
        self.load_host_operators = get(self._glue, "tsg_load_host_operators", c_int, c_char_p, c_int)
        self.set_error_text = get(self._glue, "tsg_set_error_text", None, c_int, c_char_p)
        self.pass_over = get(self._glue, "tsg_pass_over", None, c_char_p)
        self.stop_sites = get(self._glue, "tsg_stop_sites", None)
        self.watch_forward = get(self._glue, "tsg_watch_forward", None, c_int)
        self.watch_step = get(self._glue, "tsg_watch_step", None, c_int)
        self.watch_memory = get(self._glue, "tsg_watch_memory", None, c_void_p)
        self.set_capturing = get(self._glue, "tsg_set_capturing", None, c_int)
        self.set_graph_calls = get(self._glue, "tsg_set_graph_calls", None, c_void_p)
        self.graph_error = get(self._glue, "tsg_graph_error", None, c_char_p)
        self.record_history = get(self._glue, "tsg_record_history", None, c_uint64, c_int)
        self.history = get(self._glue, "tsg_history", c_char_p, ctypes.POINTER(c_int64), c_uint64)
        self.elapsed_ms = get(self._glue, "tsg_elapsed_ms", c_double, c_void_p, c_void_p)

    @staticmethod
    def _get(library: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
        return function  # type: ignore[no-any-return]


def load(core: Path, glue: Path) -> Native:
    """Load both objects; torch knows the device from here on."""
    if not _loaded:
        _loaded.append(Native(core, glue))
    return _loaded[0]


@cache
def native() -> Native:
    """The loaded functions. Only to be called after `load`."""
    return _loaded[0]

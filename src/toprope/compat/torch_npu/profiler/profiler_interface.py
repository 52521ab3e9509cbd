"""One profile after another for `torch_npu.profiler`: its folder, its recording, and the files that describe it.

Called by profiler.py. toprope.sim.profiler records and writes the vendor's files. The keys of its files are
torch_npu's; toprope.estimate refuses a folder with the key "toprope", and profiler.py reads the type of export back.
Tests: tests/compat/test_torch_npu_profiler.py.
"""

from __future__ import annotations

import json
import os
import time
import uuid
import weakref
from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from toprope.sim import installed
from toprope.sim.profiler import RAW, Options, analyse, export_chrome_trace, export_stacks, save
from toprope.sim.profiler.collector import Collector

from .._facade import version
from ._folder import FOLDER, remove
from ._messages import error, flag, say_times, warn
from .experimental_config import ExportType, _ExperimentalConfig

__all__ = ["ProfilerActivity", "supported_activities"]

_LONGEST_ID = 1024
_MSPROF = ("PROFILER_SAMPLECONFIG", "PROFILING_MODE")
"""Variables by which the vendor's command line profiler says that it runs; torch_npu's is then switched off."""

_VARIABLES = (
    "ASCEND_GLOBAL_LOG_LEVEL", "HCCL_RDMA_TC", "HCCL_RDMA_SL", "ACLNN_CACHE_LIMIT", "HOST_CACHE_CAPACITY",
    "ASCEND_ENHANCE_ENABLE", "PYTORCH_NPU_ALLOC_CONF", "ASCEND_LAUNCH_BLOCKING", "HCCL_ALGO",
)  # fmt: skip
"""Variables whose values the real profiler keeps with a profile."""


class ProfilerActivity(Enum):
    """Sides of a program that can be recorded."""

    CPU = 0
    NPU = 1


def supported_activities() -> set[ProfilerActivity]:
    """The activities that can be recorded: both."""
    return set(ProfilerActivity)


class _ProfInterface:
    """The arguments of a profiler, and the steps of a profile. Wrong arguments are replaced, with a warning."""

    def __init__(
        self,
        activities: Iterable[ProfilerActivity] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
        schedule: Callable[[int], Any] | None = None,
        metadata: dict[str, Any] | None = None,
        experimental_config: object = None,
        custom_trace_id_callback: Callable[[], str] | None = None,
    ) -> None:
        self.prof_path = ""
        self.activities = set(activities) if activities else supported_activities()
        if not self.activities <= supported_activities():
            warn("the activities are CPU and NPU alone; both are taken.")
            self.activities = supported_activities()
        self.record_shapes = flag("record_shapes", record_shapes)
        self.profile_memory = flag("profile_memory", profile_memory)
        self.with_stack = flag("with_stack", with_stack)
        self.with_flops = flag("with_flops", with_flops)
        self.with_modules = flag("with_modules", with_modules)
        if isinstance(experimental_config, _ExperimentalConfig):
            self.experimental_config = experimental_config
            if ProfilerActivity.NPU not in self.activities:
                warn("experimental_config has no effect without ProfilerActivity.NPU.")
        else:
            self.experimental_config = _ExperimentalConfig()
            if experimental_config is not None:
                warn("experimental_config is no _ExperimentalConfig; the default is taken.")
        self.schedule = schedule
        self.metadata: dict[str, Any] = {} if metadata is None else metadata
        self.custom_trace_id_callback = custom_trace_id_callback
        self.trace_id = ""
        self._failure: Exception | None = None
        self._begin_monotonic = 0
        self._collector: Collector | None = None
        found = [name for name in _MSPROF if os.environ.get(name)]
        self._active = not found
        if found:
            warn(f"{found[0]} is set, as under msprof: nothing is recorded here.")

    def init_trace(self) -> None:
        """Make the folder of the next profile."""
        if not self._active:
            return
        self.prof_path = ""
        path, removed_with_us = FOLDER.make()
        self.prof_path = str(path)
        if removed_with_us:
            weakref.finalize(self, remove, path)
        self.trace_id = self._new_trace_id()

    def warmup_trace(self) -> None:
        """Prepare a recording: here there is nothing to prepare."""

    def start_trace(self) -> None:
        """Begin to record."""
        if not self._active or not self.prof_path:
            return
        config = self.experimental_config
        if config.without_effect:
            warn(f"the simulated card has nothing to record for {', '.join(config.without_effect)}.")
        self._begin_monotonic = time.monotonic_ns()
        host = ProfilerActivity.CPU in self.activities
        card = ProfilerActivity.NPU in self.activities
        collector = Collector(
            Options(
                host=host, card=card, shapes=self.record_shapes, stack=self.with_stack, modules=self.with_modules,
                flops=self.with_flops, memory=self.profile_memory, level=config._profiler_level,
                metrics=config._aic_metrics,
            )
        )  # fmt: skip
        try:
            collector.start()
        except Exception:
            self.delete_prof_dir()
            raise
        self._collector = collector

    def stop_trace(self) -> None:
        """End the recording, and keep it in the folder."""
        collector, self._collector = self._collector, None
        if collector is None:
            return
        capture = collector.stop()
        self._failure = self._failure or collector.failure
        worked = any(each.act == "operator" for each in capture.trace.records)
        if capture.options.host and worked and not capture.operators:
            error("no operators of the host were recorded: did torch's own profiler run in the profile?")
        raw = Path(self.prof_path) / RAW
        raw.parent.mkdir(mode=0o750, exist_ok=True)
        save(capture, raw)
        if capture.trace.lost:
            warn(f"the oldest {capture.trace.lost} acts of the cards were lost: the profile is too long.")

    def raise_failure(self) -> None:
        """Let the program see the failure of a card that the end of a profile has found; a card reports it once.

        Raises:
            RuntimeError: the card's.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def finalize_trace(self) -> None:
        """Write profiler_info.json and profiler_metadata.json."""
        if not self._active or not self.prof_path:
            return
        say_times()
        rank = os.environ.get("RANK")
        if rank is None and dist.is_available() and dist.is_initialized():
            rank = str(dist.get_rank())
        info = self._info() | ({} if rank is None else {"rank_id": rank})
        name = "profiler_info.json" if rank is None else f"profiler_info_{rank}.json"
        _write(Path(self.prof_path) / name, info, indent=4)
        if ExportType.Text in self.experimental_config.export_type:
            self.metadata["ENV_VARIABLES"] = {name: os.environ.get(name, "") for name in _VARIABLES}
        if groups := _groups():
            self.metadata["parallel_group_info"] = groups
        self.metadata["trace_id"] = self.trace_id
        _write(Path(self.prof_path) / "profiler_metadata.json", self.metadata | _origin())
        self.metadata.clear()

    def delete_prof_dir(self) -> None:
        """Remove the folder of a profile that recorded nothing."""
        if self.prof_path:
            remove(Path(self.prof_path))
            self.prof_path = ""

    def analyse(self, async_mode: bool = False) -> None:
        """Write the files of the profile, at once also where they may come later."""
        if self._active and self.prof_path:
            _analyse(Path(self.prof_path), self.experimental_config.export_type)

    def export_chrome_trace(self, path: Path) -> None:
        """Write the timeline alone."""
        export_chrome_trace(Path(self.prof_path), path)

    def export_stacks(self, path: Path, *, of_card: bool) -> None:
        """Write the stacks alone."""
        export_stacks(Path(self.prof_path), path, of_card=of_card)

    def _new_trace_id(self) -> str:
        default = f"{uuid.uuid4().int:032X}"
        if not self.custom_trace_id_callback:
            return default
        try:
            found = self.custom_trace_id_callback()
        except Exception as problem:
            warn(f"custom_trace_id_callback failed: {problem}; an id of our own is taken.")
            return default
        if isinstance(found, str) and len(found) <= _LONGEST_ID:
            return found
        warn(f"custom_trace_id_callback gave no str of at most {_LONGEST_ID} characters; an id of our own is taken.")
        return default

    def _info(self) -> dict[str, Any]:
        common = {
            "activities": sorted(map(str, self.activities)),
            "schedule": getattr(self.schedule, "__dict__", None),
            "record_shapes": self.record_shapes,
            "profile_memory": self.profile_memory,
            "with_stack": self.with_stack,
            "with_flops": self.with_flops,
            "with_modules": self.with_modules,
        }
        return {
            "config": {"common_config": common, "experimental_config": vars(self.experimental_config)},
            "start_info": {
                "syscnt_enable": False, "freq": 100, "start_cnt": 0, "start_monotonic": self._begin_monotonic,
            },
            "end_info": {"collectionTimeEnd": time.time_ns(), "MonotonicTimeEnd": time.monotonic_ns()},
            "torch_npu_version": version(),
            "cann_version": "",
        }  # fmt: skip


def analyse_folder(path: Path, export_type: Iterable[str]) -> None:
    """Write the files of a profile that was recorded before."""
    _analyse(path, export_type)


def _analyse(path: Path, export_type: Iterable[str]) -> None:
    if ExportType.Db in export_type:
        error("the database of export_type 'db' is not simulated; 'text' writes files.")
    if ExportType.Text in export_type:
        analyse(path)


def _origin() -> dict[str, Any]:
    """The key that says in the folder itself that no card was measured."""
    spec = installed()
    card = "none" if spec is None else f"simulated Ascend {spec.chip}"
    return {"toprope": {"card": card, "times": "of the host's CPU, measured; not the card's"}}


def _groups() -> dict[str, Any]:
    """The process groups of HCCL that this process is in, by the names of their communicators."""
    if not dist.is_available() or not dist.is_initialized():
        return {}
    c10d: Any = dist.distributed_c10d
    rank, default = dist.get_rank(), c10d._get_default_group()
    found = {}
    for group, (backend, _) in c10d._world.pg_map.items():
        if "hccl" not in str(backend).lower():
            continue
        hccl = group._get_backend(torch.device("npu"))
        name = hccl.get_hccl_comm_name(rank, init_comm=False)
        if name:
            given = getattr(getattr(hccl, "options", None), "hccl_config", {}).get("group_name", "")
            found[name] = {
                "group_name": "default_group" if group is default else given,
                "group_rank": dist.get_group_rank(group, rank),
                "global_ranks": dist.get_process_group_ranks(group),
            }
    return found


def _write(path: Path, data: dict[str, Any], indent: int | None = None) -> None:
    path.write_text(json.dumps(data, indent=indent, ensure_ascii=False), encoding="utf-8")

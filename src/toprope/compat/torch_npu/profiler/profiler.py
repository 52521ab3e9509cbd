"""Facade module `torch_npu.profiler.profiler`: profilers that programs start, step and stop, and `analyse` of a folder.

Arguments, order of calls and names of methods are torch_npu's; the recording is profiler_interface.py. Nothing here may
end the program: `reported` turns an error into a line. Tests: tests/compat/test_torch_npu_profiler.py.
"""

from __future__ import annotations

import atexit
import json
import os
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from sys import getsizeof
from types import TracebackType
from typing import Any, Self

from torch.autograd.profiler import record_function

from toprope.compat.missing import missing_from
from toprope.sim.profiler import profiles

from .._facade import current_npu
from ._actions import change_action
from ._folder import FOLDER
from ._messages import flag, reported, warn
from .experimental_config import ExportType, _ExperimentalConfig
from .profiler_interface import ProfilerActivity, _ProfInterface, analyse_folder, supported_activities
from .scheduler import ProfilerAction, record_always

__all__ = ["analyse", "profile", "supported_activities", "tensorboard_trace_handler"]

_LONGEST = 4096
_MOST = 50 * 1024
"""Bytes of the metadata of a profile, and characters of one text in it."""

_METRICS = {"self_cpu_time_total": False, "self_npu_time_total": True}


class _KinetoProfile:
    """Profiler between `start` and `stop`; the keywords are those of torch_npu."""

    def __init__(
        self,
        *,
        activities: Iterable[ProfilerActivity] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
        experimental_config: _ExperimentalConfig | None = None,
        custom_trace_id_callback: Callable[[], str] | None = None,
        _schedule: Callable[[int], ProfilerAction] | None = None,
    ) -> None:
        self.metadata: dict[str, Any] = {}
        self.prof_if = _ProfInterface(
            activities=activities,
            record_shapes=record_shapes,
            profile_memory=profile_memory,
            with_stack=with_stack,
            with_flops=with_flops,
            with_modules=with_modules,
            schedule=_schedule,
            metadata=self.metadata,
            experimental_config=experimental_config,
            custom_trace_id_callback=custom_trace_id_callback,
        )

    @reported
    def start(self) -> None:
        """Begin to record."""
        FOLDER.choose(export_only=True)
        self.prof_if.init_trace()
        self.prof_if.start_trace()

    def stop(self) -> None:
        """End the recording.

        Raises:
            RuntimeError: a card has failed; the record is kept all the same.
        """
        self._stop()
        self.prof_if.raise_failure()

    @reported
    def _stop(self) -> None:
        self.prof_if.stop_trace()
        self.prof_if.finalize_trace()

    @reported
    def export_chrome_trace(self, output_path: str) -> None:
        """Write the timeline, which Perfetto and chrome://tracing open."""
        if path := self._output(output_path):
            if path.suffix != ".json":
                warn("torch_npu of 2025 refuses a name that does not end in .json (ERR04003): give it one that does.")
            self.prof_if.export_chrome_trace(path)

    @reported
    def export_stacks(self, output_path: str, metric: str = "self_cpu_time_total") -> None:
        """Write the Python stacks of operators with their own time, for flame graphs.

        Args:
            output_path: the file, which gets the suffix .log.
            metric: "self_cpu_time_total", or "self_npu_time_total" for the kernels that they launched.
        """
        if not self.prof_if.with_stack:
            warn("export_stacks() needs with_stack=True.")
            return
        if metric not in _METRICS:
            warn(f"the metric is {metric!r}; self_cpu_time_total is taken.")
        if path := self._output(output_path):
            if path.suffix != ".log":
                warn("the file of export_stacks() gets the suffix .log.")
            self.prof_if.export_stacks(path.with_suffix(".log"), of_card=_METRICS.get(metric, False))

    def export_memory_timeline(self, output_path: str, device: str | None = None) -> None:
        """Not simulated.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            "torch_npu.profiler: export_memory_timeline is not simulated; "
            "profile_memory=True writes operator_memory.csv and memory_record.csv"
        )

    def _output(self, output_path: str) -> Path | None:
        """The file that the user named; None where there is no record."""
        path = Path(output_path).expanduser().resolve()
        if not output_path or path.is_dir():
            raise IsADirectoryError(f"{output_path!r} is no name of a file")
        if not self.prof_if.prof_path:
            warn("there is no record to export.")
            return None
        return path

    @reported
    def add_metadata(self, key: str, value: str) -> None:
        """Keep a text in profiler_metadata.json."""
        if self._takes(key, value):
            self.metadata[key] = value

    @reported
    def add_metadata_json(self, key: str, value: str) -> None:
        """Keep in profiler_metadata.json what a JSON text says."""
        if self._takes(key, value):
            try:
                self.metadata[key] = json.loads(value)
            except ValueError:
                warn(f"the metadata {key!r} is no JSON, and is left out.")

    def _takes(self, key: object, value: object) -> bool:
        if not isinstance(key, str) or not isinstance(value, str):
            warn("metadata is a str with a key that is a str; this one is left out.")
        elif max(len(key), len(value)) > _LONGEST:
            warn(f"metadata has at most {_LONGEST} characters; this one is left out.")
        elif getsizeof(self.metadata) + getsizeof(key) + getsizeof(value) >= _MOST:
            warn(f"there is too much metadata; {key!r} is left out.")
        else:
            if key in self.metadata:
                warn(f"the metadata {key!r} is replaced.")
            return True
        return False


@reported
def tensorboard_trace_handler(
    dir_name: str | None = None, worker_name: str | None = None, analyse_flag: bool = True, async_mode: bool = False
) -> Callable[[Any], None]:
    """Make the function that writes the files of each complete record.

    Args:
        dir_name: folder of the profiles' folders; None for the one in ASCEND_WORK_PATH, else the current folder.
        worker_name: begin of the names of the profiles' folders; None for the name of the machine.
        analyse_flag: whether to write them; else `analyse` can do it later.
        async_mode: whether the program goes on meanwhile. The files are written at once here.

    Returns:
        the function for `on_trace_ready`; None where the folder cannot be one, which is reported.
    """
    FOLDER.choose(worker_name, dir_name)
    write = flag("analyse_flag", analyse_flag, default=True)
    later = flag("async_mode", async_mode)

    def ready(profiler: Any) -> None:
        if write:
            profiler.prof_if.analyse(async_mode=later)

    return ready


class profile(_KinetoProfile):  # noqa: N801  torch_npu's name
    """Profiler with a schedule, as a context or between `start` and `stop`; the keywords are those of torch_npu."""

    def __init__(
        self,
        *,
        activities: Iterable[ProfilerActivity] | None = None,
        schedule: Callable[[int], ProfilerAction] | None = None,
        on_trace_ready: Callable[..., Any] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
        experimental_config: _ExperimentalConfig | None = None,
        execution_trace_observer: Any = None,
        custom_trace_id_callback: Callable[[], str] | None = None,
        use_cuda: bool | None = None,
    ) -> None:
        chosen = _function("schedule", schedule)
        self.record_steps = chosen is not None
        self.schedule: Callable[[int], ProfilerAction] = chosen or record_always
        super().__init__(
            activities=activities,
            record_shapes=record_shapes,
            profile_memory=profile_memory,
            with_stack=with_stack,
            with_flops=with_flops,
            with_modules=with_modules,
            experimental_config=experimental_config,
            custom_trace_id_callback=custom_trace_id_callback,
            _schedule=self.schedule,
        )
        if use_cuda is not None:
            warn("use_cuda has no effect on an NPU.")
        self.on_trace_ready = _function("on_trace_ready", on_trace_ready)
        self.execution_trace_observer = execution_trace_observer
        self.step_num = 0
        self.current_action = self.schedule(0)
        self.step_rec_fn: Any = None
        self.stopped = False
        self._started = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.stop()
        else:
            self._stop()

    def __del__(self) -> None:
        if getattr(self, "_started", False) and not self.stopped:
            self._stop()

    @reported
    def start(self) -> None:
        """Begin with the schedule's first step."""
        self.stopped, self._started = False, True
        if self.on_trace_ready is None:
            FOLDER.choose(export_only=True)
        try:
            self._change(ProfilerAction.NONE, self.current_action)
        finally:
            self._begin_step()
            atexit.register(_stop_late, weakref.ref(self))
        if self.execution_trace_observer:
            self.execution_trace_observer.start()

    def step(self) -> None:
        """Go on to the schedule's next step.

        Raises:
            RuntimeError: a card has failed; the record is kept all the same.
        """
        self._step()
        self.prof_if.raise_failure()

    @reported
    def _step(self) -> None:
        if self.stopped:
            warn("the profiler is stopped; step() has no effect.")
            return
        self._end_step()
        before = self.current_action
        self.step_num += 1
        self.current_action = self.schedule(self.step_num)
        try:
            self._change(before, self.current_action)
        finally:
            self._begin_step()

    @reported
    def _stop(self) -> None:
        self._end_step()
        self.stopped = True
        self._change(self.current_action, None)
        if self.execution_trace_observer:
            self.execution_trace_observer.stop()

    def _change(self, before: ProfilerAction, now: ProfilerAction | None) -> None:
        change_action(self.prof_if, self._ready, before, now)

    def _ready(self) -> None:
        if self.on_trace_ready is not None:
            self.on_trace_ready(self)

    def _begin_step(self) -> None:
        if self.record_steps:
            self.step_rec_fn = record_function(f"ProfilerStep#{self.step_num}")
            self.step_rec_fn.__enter__()

    def _end_step(self) -> None:
        if self.step_rec_fn is not None:
            self.step_rec_fn.__exit__(None, None, None)
            self.step_rec_fn = None

    def set_custom_trace_id_callback(self, callback: Callable[[], str]) -> None:
        """Set the function that gives the id of the next profile."""
        self.prof_if.custom_trace_id_callback = callback

    def get_trace_id(self) -> str:
        """The id of the profile."""
        return self.prof_if.trace_id

    @classmethod
    def enable_profiler_in_child_thread(
        cls,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
    ) -> None:
        """Have the operators of the calling thread recorded: here those of all threads are."""

    @classmethod
    @reported
    def disable_profiler_in_child_thread(cls) -> None:
        """End what `enable_profiler_in_child_thread` began: waits for the card."""
        current_npu().synchronize()


def _stop_late(started: weakref.ref[profile]) -> None:
    """Stop a profiler that the program has left running at its end."""
    profiler = started()
    if profiler is not None and not profiler.stopped:
        profiler._stop()


def _function(name: str, given: object) -> Callable[..., Any] | None:
    if given is None or callable(given):
        return given
    warn(f"{name} is no function, and is left out.")
    return None


@reported
def analyse(
    profiler_path: str, max_process_number: int = (os.cpu_count() or 2) // 2, export_type: str | list[str] | None = None
) -> None:
    """Write the files of profiles that were recorded before.

    Args:
        profiler_path: the folder of a profile, or one with several.
        max_process_number: processes to do it with; one is enough here.
        export_type: "text", "db" or a list of them; None for what the profile was recorded with.
    """
    if not isinstance(max_process_number, int) or max_process_number <= 0:
        warn(f"max_process_number is {max_process_number!r}; the default is taken.")
    kinds = [export_type] if isinstance(export_type, str) else export_type
    known = [ExportType.Text, ExportType.Db]
    if kinds is not None and (not isinstance(kinds, list) or not kinds or not all(each in known for each in kinds)):
        warn(f"export_type is {export_type!r}; the record's own is taken.")
        kinds = None
    found = profiles(Path(profiler_path).expanduser().resolve())
    if not found:
        warn(f"{profiler_path} has no record of toprope's profiler.")
    for folder in found:
        analyse_folder(folder, kinds or _recorded_types(folder))


def _recorded_types(folder: Path) -> list[str]:
    for path in folder.glob("profiler_info*.json"):
        config = json.loads(path.read_text(encoding="utf-8"))["config"]["experimental_config"]
        return list(config["_export_type"])
    return [ExportType.Text]


__getattr__ = missing_from(__name__)

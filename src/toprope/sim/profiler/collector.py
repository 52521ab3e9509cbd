"""Recording of a piece of a program: torch's own profiler for the host, the simulator's trace for the cards.

`torch_npu.profiler` starts and stops it (compat/torch_npu/profiler/profiler_interface.py). Tests:
tests/compat/test_torch_npu_profiler.py.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from toprope.errors import SimulatorError
from toprope.sim.profiler.capture import Capture, HostOperator, Options
from toprope.sim.state import installed
from toprope.sim.tracing.records import Trace
from toprope.sim.tracing.tracer import trace

if TYPE_CHECKING:
    from toprope.sim.tracing.tracer import Recording

__all__ = ["Collector"]

_KEPT = frozenset(
    ("operator", "kernel", "launch", "collective", "copy to card", "copy from card", "copy between cards")
)
_MEMORY = frozenset(("allocate", "free"))


class Collector:
    """One recording, between `start` and `stop`.

    Args:
        options: what is recorded.

    Attributes:
        failure: the failure of a card that the wait for its end found; None for none.
    """

    def __init__(self, options: Options) -> None:
        self.failure: Exception | None = None
        self._options = options
        self._ended = ExitStack()
        self._recording: Recording | None = None
        self._profiler: Any = None
        self._allocated: dict[int, int] = {}

    def start(self) -> None:
        """Begin.

        Raises:
            SimulatorError: there is no simulated card, or the program traces it already.
            RuntimeError: torch's own profiler is running.
        """
        options = self._options
        card = options.card or options.memory
        if card and installed() is None:
            raise SimulatorError(
                "there is no simulated card to profile.", do="run the program with toprope run, or record the CPU alone"
            )
        if options.host and torch._C._autograd._profiler_enabled():
            raise RuntimeError("torch's own profiler is running, and operators of the host are recorded once")
        with ExitStack() as started:
            if card:
                self._allocated = {card: _npu().memory_allocated(card) for card in range(_npu().device_count())}
                self._recording = started.enter_context(trace())
            if options.host:
                self._profiler = _host_profiler(options)
                self._profiler.start()
                started.callback(self._profiler.stop)
            self._ended = started.pop_all()

    def stop(self) -> Capture:
        """End, when the work that was queued on the cards is done."""
        for card in range(0 if self._recording is None else _npu().device_count()):
            try:
                _npu().synchronize(card)
            except Exception as error:
                self.failure = self.failure or error
        self._ended.close()
        operators = () if self._profiler is None else _operators(self._profiler.profiler.kineto_results)
        wanted = (_KEPT if self._options.card else frozenset()) | (_MEMORY if self._options.memory else frozenset())
        if self._recording is None:
            recorded = Trace(os.getpid(), 0, 0, (), 0)
        else:
            whole = self._recording.trace
            kept = tuple(record for record in whole.records if record.act in wanted)
            wall = whole.began_ns + _wall_minus_steady_ns()
            recorded = replace(whole, wall_ns=wall, records=kept)
        return Capture(self._options, recorded, operators, self._allocated)


def _npu() -> Any:
    return vars(torch)["npu"]


def _wall_minus_steady_ns() -> int:
    """The distance of the two clocks, which also holds where this thread is interrupted between reading both."""
    readings = []
    for _ in range(9):
        before, wall, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        readings.append((after - before, wall - (before + after) // 2))
    return min(readings)[1]


def _host_profiler(options: Options) -> Any:
    """torch's profiler of the CPU. It sees all threads, as the trace of the cards does."""
    settings = torch._C._profiler._ExperimentalConfig(profile_all_threads=True, verbose=options.stack)
    return torch.profiler.profiler.profile(
        activities=[torch._C._profiler.ProfilerActivity.CPU],
        record_shapes=options.shapes,
        with_stack=options.stack,
        with_flops=options.flops,
        with_modules=options.modules,
        experimental_config=settings,
    )


def _operators(results: Any) -> tuple[HostOperator, ...]:
    found = (
        HostOperator(
            event.name(),
            event.start_ns(),
            event.end_ns(),
            event.device_resource_id(),
            _shapes(event.shapes()),
            ";".join(event.dtypes()),
            tuple(event.stack()),
            event.sequence_nr(),
            event.fwd_thread_id(),
            event.flops(),
            event.is_python_function(),
        )
        for event in results.events()
        if not event.is_hidden_event()
    )
    return tuple(sorted(found, key=lambda operator: (operator.begin_ns, -operator.end_ns)))


def _shapes(shapes: list[list[int]]) -> str:
    return ";".join(",".join(map(str, shape)) for shape in shapes)

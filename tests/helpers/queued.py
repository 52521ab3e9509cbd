"""Work on the card's streams, written in Python: a queued function runs on the stream's thread when its turn comes.

For tests in tests/sim/simulated that need a stream to be busy until they say so.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from types import TracebackType

import torch

from toprope.sim.native import TASK, native

_kept: list[object] = []  # the C side holds no reference to a task
_gates: "list[Gate]" = []


def queue(
    function: Callable[[], object], stream: torch.Stream | None = None, *, device: int | None = None, status: int = 0
) -> None:
    """Queues a function on a stream (by default the current one); it ends with this status."""
    if stream is None:
        stream = torch.npu.current_stream(device)

    def run(_: object) -> int:
        function()
        return status

    task = TASK(run)
    _kept.append(task)
    assert native().launch(stream.device_index, stream.stream_id, task, None) == 0


class Gate:
    """Holds a stream up until the context ends or `open` is called, but not longer than `limit` seconds."""

    def __init__(self, stream: torch.Stream | None = None, *, device: int | None = None, limit: float = 30.0) -> None:
        self._event = threading.Event()
        self.passed = threading.Event()
        self._limit = limit
        _gates.append(self)
        queue(self._wait, stream, device=device)

    def _wait(self) -> None:
        self._event.wait(self._limit)
        self.passed.set()

    def open(self) -> None:
        self._event.set()

    def open_in(self, seconds: float) -> None:
        """Opens it later, from another thread."""
        threading.Timer(seconds, self.open).start()

    def __enter__(self) -> "Gate":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.open()


def open_all() -> None:
    """Opens what a failed test left closed."""
    while _gates:
        _gates.pop().open()


def wait_until(condition: Callable[[], bool], limit: float = 20.0) -> bool:
    """Whether a condition comes true in time."""
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True


SECONDS = 0.05  # how long queued work lets the host wait


def write_later(
    tensor: torch.Tensor, value: float, stream: torch.Stream | None = None, *, go: threading.Event | None = None
) -> threading.Event:
    """Queues work that takes a while, from `go` on, and then fills the tensor; the event tells that it has run."""
    host = torch.ops.toprope_sim.host_view(tensor).numpy()
    done = threading.Event()

    def work() -> None:
        if go is not None:
            go.wait(20)
        time.sleep(SECONDS)
        host.fill(value)
        done.set()

    queue(work, stream)
    return done


SYNCHRONISATIONS: dict[str, Callable[[torch.Stream], object]] = {
    "torch.npu.synchronize": lambda s: torch.npu.synchronize(),
    "torch.npu.synchronize with a number": lambda s: torch.npu.synchronize(0),
    "torch.npu.synchronize with a name": lambda s: torch.npu.synchronize("npu:0"),
    "torch.accelerator.synchronize": lambda s: torch.accelerator.synchronize(),
    "of the stream": lambda s: s.synchronize(),
    "of an event": lambda s: s.record_event().synchronize(),
    "of the same stream under torch's class": lambda s: torch.Stream(
        stream_id=s.stream_id, device_index=s.device_index, device_type=s.device_type
    ).synchronize(),
    "of a torch.Event": lambda s: s.record_event(torch.Event("npu")).synchronize(),
}  # fmt: skip
"""Ways to wait for the work of a stream."""


def settle() -> None:
    """Ends what a test may have left in the cards' streams."""
    open_all()
    for card in range(torch.npu.device_count()):
        with contextlib.suppress(RuntimeError):  # a failure that the test did not ask for
            torch.npu.synchronize(card)

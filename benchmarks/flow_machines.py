"""Payloads between two machines: an edge of a pipeline next to Ray's objects, in rounds in which both take turns.

    python benchmarks/flow_machines.py                       a table
    python benchmarks/flow_machines.py --rounds 2 --share 0.1    a quick look
    python benchmarks/flow_machines.py --without-ray         the edge alone

Each side sends an array to another process and gets it back. The edge does so by the authenticated connections of
toprope.flow between processes that take each other for other machines; Ray by a call of an actor on another node, which
copies its object from one object store to the other. Both are on this machine: it compares the work of the processors,
not the network. Decision to make with it: whether edges between machines stay on their own connections or go by Ray's
objects.

Run by hand; docs/benchmarks.md has the figures. Ray's side is two nodes of `ray.cluster_utils` on this machine.

No test runs it: `--rounds 2 --share 0.1` shows that all of it works.
"""

from __future__ import annotations

import argparse
import functools
import logging
import multiprocessing
import os
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
from parts.ratios import ratio

from toprope.flow.edge.codec import Codec
from toprope.flow.edge.connections import Connections, Kind
from toprope.flow.edge.links import InQueue, in_link, out_link
from toprope.flow.stage.plan import Address, Route, Target
from toprope.flow.stage.spec import TENSOR, Head, Message

SIZES = {"1 KB": (10**3, 200), "1 MB": (10**6, 60), "64 MB": (64 * 10**6, 4)}
"""Bytes of a payload, and how many are sent in a round."""

DEPTH = 8


class End:
    """A process on a machine of its own that sends to another one and receives from it.

    Args:
        folder: for its sockets and its memory.
        name, other: this process and the other one.
        secret: of both.
    """

    def __init__(self, folder: Path, name: str, other: str, secret: bytes) -> None:
        folder.mkdir()
        self._other = other
        self._codec = Codec(folder, name)
        self._connections = Connections(
            folder, name, self._handle, lambda peer: None, secret, f"machine of {name}", "127.0.0.1"
        )
        self._queue = InQueue(self._connections, self._codec, DEPTH)
        self.address = self._connections.address

    def _handle(self, peer: Any, message: Any) -> None:
        if message.kind == Kind.LINK:
            *key, name = message.meta
            in_link(self._connections, (key[0], key[1], key[2]), name, peer, self._queue)

    def connect(self, address: Address) -> None:
        """Make an edge to the other process."""
        self._connections.book = {self._other: address}
        route = Route(0, 0, (), DEPTH, False, "next")
        target = Target(self._other, 0, 0, True)
        self._link = out_link(self._connections, (0, 0, 0), target, route, self._codec)
        self._link.connect()

    def send(self, message: Message) -> None:
        """Send a message."""
        if not self._link.wait(time.monotonic() + 60):
            raise RuntimeError("the other process takes nothing")
        self._link.send(self._codec.seal(message, 1, on_host=True), 0)

    def receive(self, seconds: float | None = 60) -> Message:
        """Receive a message."""
        until = None if seconds is None else time.monotonic() + seconds
        if not self._connections.wait(lambda: len(self._queue) > 0, until):
            raise RuntimeError("the other process sends nothing")
        message = self._queue.take()
        for link in self._queue.links:
            link.finish()
        return message

    def close(self) -> None:
        """End the connections."""
        self._connections.close()
        self._codec.close()


def answer(pipe: Any, folder: Path, secret: bytes) -> None:
    """Send back each array, in a process of its own; it ends with the benchmark."""
    end = End(folder, "b", "a", secret)
    pipe.send(end.address)
    end.connect(pipe.recv())
    while True:
        found = end.receive(None)
        end.send(Message(TENSOR, found.payload, found.head))


def edge(folder: Path) -> tuple[Callable[[Any], Any], Callable[[], None]]:
    """An edge there and back: a call that sends an array and returns what comes back, and the end."""
    secret = secrets.token_bytes(32)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=answer, args=(theirs, folder / "b", secret), daemon=True)
    process.start()
    end = End(folder / "a", "a", "b", secret)
    if not ours.poll(60):
        raise RuntimeError("the other process does not start")
    address = ours.recv()
    ours.send(end.address)
    end.connect(address)
    numbers = iter(range(1, sys.maxsize))

    def once(array: Any) -> Any:
        end.send(Message(TENSOR, array, Head(next(numbers))))
        return end.receive().payload

    def close() -> None:
        process.terminate()
        process.join()
        end.close()

    return once, close


def rays() -> tuple[Callable[[Any], Any], Callable[[], None]]:
    """A call of an actor on another node of a Ray, and the end."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    for number in range(2):
        cluster.add_node(num_cpus=1, resources={f"node{number}": 1}, include_dashboard=False)
    ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)

    class Echo:
        def same(self, value: Any) -> Any:
            return value.copy()  # a result that is its argument would not be sent back

    actor = ray.remote(num_cpus=1, resources={"node1": 1})(Echo).remote()

    def close() -> None:
        ray.shutdown()
        cluster.shutdown()

    return lambda array: ray.get(actor.same.remote(array), timeout=60), close


def measured(once: Callable[[Any], Any], array: Any, count: int) -> float:
    """Median microseconds of an array there and back."""
    times = []
    for _ in range(count):
        begin = time.perf_counter_ns()
        found = once(array)
        times.append((time.perf_counter_ns() - begin) / 1000)
        if found.nbytes != array.nbytes:
            raise RuntimeError("another array came back")
    return statistics.median(times)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--share", type=float, default=1.0, help="of the payloads of a whole measurement")
    parser.add_argument("--without-ray", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        sides, ends = {}, []
        for side, make in {"edge": functools.partial(edge, Path(name)), "Ray": rays}.items():
            if side == "edge" or not given.without_ray:
                sides[side], end = make()
                ends.append(end)
        print("| payload, there and back | edge | Ray | median ratio edge / Ray (interval, confidence) |")
        print("|---|---:|---:|---|")
        try:
            for size, (count, most) in SIZES.items():
                array = numpy.zeros(count, "u1")
                times: dict[str, list[float]] = {side: [] for side in sides}
                for number in range(given.rounds + 1):
                    for side in list(sides)[:: 1 if number % 2 else -1]:
                        found = measured(sides[side], array, max(2, int(most * given.share)))
                        if number:  # one round before does not count
                            times[side].append(found)
                ray_time, text = "", ""
                if "Ray" in times:
                    ray_time = f"{statistics.median(times['Ray']):.0f} us"
                    text = str(ratio(times["edge"], times["Ray"]))
                print(f"| {size} | {statistics.median(times['edge']):.0f} us | {ray_time} | {text} |")
        finally:
            for end in ends:
                end()
    return 0


if __name__ == "__main__":
    sys.exit(main())

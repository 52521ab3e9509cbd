"""Child process of this Python that reports facts on a pipe, with a time limit. Imports no torch.

Used by the two probes, `device.doctor.torch_probe` and `images.doctor.checks`, and by their children for `say`. A fact
is one line of JSON with the key "fact", the last one "end": parent and child are of one installation, so the form may
change in both at once. No child may outlive its parent's `with`. Tests: tests/device/test_doctor_collect.py,
tests/device/test_doctor_cli.py (the child's side).
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from toprope.messages import Message

__all__ = ["Child", "ended_by", "facts_in", "say"]

_END = b'{"fact": "end"}\n'
_GRACE = 1.0


class Child:
    """A child process that starts now and is read later. A context manager: its exit kills the child and its children.

    The child writes its facts with `say`, "end" last, so that a crash leaves what was found before it.

    Args:
        words: the arguments of this Python; the number of the pipe's file descriptor is added as the last one.
        environment: the variables of the child.
        wait: its time limit from now, in seconds.
    """

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], *, wait: float) -> None:
        self._wait, self._deadline = wait, time.monotonic() + wait
        self._reader, writer = os.pipe()
        try:
            self.process = subprocess.Popen(
                [sys.executable, *words, str(writer)],
                env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                pass_fds=(writer,), start_new_session=True,
            )  # fmt: skip
        except BaseException:
            os.close(self._reader)
            raise
        finally:
            os.close(writer)

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self.process.wait()
        os.close(self._reader)

    def lines(self) -> tuple[list[str], str]:
        """Wait for the child. Return its output, and how it ended; "" if it wrote "end"."""
        data = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(self._reader, selectors.EVENT_READ)
            while not data.endswith(_END):
                if not selector.select(max(0.0, self._deadline - time.monotonic())):
                    return _lines(data), Message("it did not answer within {wait:.0f} s", wait=self._wait)
                piece = os.read(self._reader, 65536)
                if not piece:
                    break
                data += piece
        try:
            ended = ended_by(self.process.wait(_GRACE))
        except subprocess.TimeoutExpired:
            ended = Message("it did not end")
        return _lines(data), "" if data.endswith(_END) else ended


def say(channel: int, fact: str, **details: object) -> None:
    """Write one fact to the pipe, in the child."""
    data = (json.dumps({"fact": fact, **details}) + "\n").encode()
    while data:
        data = data[os.write(channel, data) :]


def facts_in(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Parse the facts in these lines; invalid lines, such as half of one, are skipped."""
    for line in lines:
        try:
            fact = json.loads(line)
        except ValueError:
            continue
        if isinstance(fact, dict):
            yield fact


def ended_by(status: int) -> str:
    """Describe how a process ended."""
    if status >= 0:
        return Message("it ended with exit status {status}", status=status)
    try:
        return Message("it was ended by {name}", name=signal.Signals(-status).name)
    except ValueError:
        return Message("it was ended by signal {status}", status=-status)


def _lines(data: bytearray) -> list[str]:
    return data.decode(errors="replace").splitlines()

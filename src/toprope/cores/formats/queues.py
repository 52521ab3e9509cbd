"""Queues of operators as a record fills them: events become what operators wait for and what they record; pure.

Shared by the two readers of records in the order of a program, `formats.trace` and `formats.fx_graph`. A stream that
waits for one event and records another with nothing in between gets an operator without cores (`NO_CORES`). Tests:
tests/cores/test_cores_record_trace.py, tests/cores/test_cores_record_graph.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from toprope.cores.model import Op, Stream

__all__ = ["Queue", "streams_of"]

NO_CORES = "EVENT"
"""Kind of an operator that stands for an event alone, and uses no cores."""


@dataclass
class Queue:
    """The operators and events of one stream while a record is read.

    Attributes:
        name: the stream's.
        card: name of its card.
        ops: what is in it so far.
        pending: events that the next operator waits for.
    """

    name: str
    card: str
    ops: list[Op] = field(default_factory=list)
    pending: list[str] = field(default_factory=list)

    def add(self, op: Op) -> None:
        """An operator, which waits for what is pending too."""
        self.ops.append(replace(op, waits=tuple(dict.fromkeys((*op.waits, *self.pending)))))
        self.pending.clear()

    def wait(self, event: str) -> None:
        """Have the next operator begin after the event has passed."""
        self.pending.append(event)

    def record(self, event: str, source: str) -> bool:
        """The event passes when all that is in the stream has finished; False where there is nothing to wait for."""
        if self.pending:
            self.add(Op("event", kind=NO_CORES, source=source))
        if not self.ops:
            return False
        self.ops[-1] = replace(self.ops[-1], records=(*self.ops[-1].records, event))
        return True


def streams_of(queues: Iterable[Queue]) -> tuple[Stream, ...]:
    """The streams of queues that hold something. Of the events, only those stay that an operator waits for."""
    filled = [queue for queue in queues if queue.ops]
    waited = {event for queue in filled for op in queue.ops for event in op.waits}
    return tuple(
        Stream(queue.name, queue.card, tuple(_with_events(op, waited) for op in queue.ops)) for queue in filled
    )


def _with_events(op: Op, waited: set[str]) -> Op:
    return replace(op, records=tuple(event for event in op.records if event in waited)) if op.records else op

"""Trace of a graph's stages in Chrome's trace format; pure.

For users (`FlowGraph.trace`): the runner collects the calls from the stages. The keys and units of an event (`ph`, `ts`
in microseconds) are what Perfetto reads; which rows there are is free. Tests: tests/flow/test_flow_edge.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["chrome"]

Activity = tuple[str, int, int, int]
"""A call: the function, start and end in ns of the steady clock, and the transaction."""


def chrome(activities: Mapping[int, Sequence[Activity]], pids: Mapping[str, int]) -> dict[str, Any]:
    """The trace that Perfetto and chrome://tracing open: a process for each process, a row for each function.

    Args:
        activities: by process.
        pids: the processes of the stages, by their names.
    """
    first = min((begin for each in activities.values() for _, begin, _, _ in each), default=0)
    events: list[dict[str, Any]] = []
    for pid, each in sorted(activities.items()):
        stages = ", ".join(name for name, at in pids.items() if at == pid)
        events.append({"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": stages or str(pid)}})
        rows = {name: place for place, name in enumerate(sorted({name for name, *_ in each}))}
        events += [
            {"ph": "M", "name": "thread_name", "pid": pid, "tid": row, "args": {"name": name}}
            for name, row in rows.items()
        ]
        events += [
            {
                "ph": "X", "cat": "stage", "name": name, "pid": pid, "tid": rows[name], "ts": (begin - first) / 1000,
                "dur": (end - begin) / 1000, "args": {"input": transaction},
            }
            for name, begin, end, transaction in each
        ]  # fmt: skip
    return {"displayTimeUnit": "ms", "traceEvents": events}

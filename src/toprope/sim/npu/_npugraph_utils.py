"""Module `torch_npu.npu._npugraph_utils`: dumps of graphs, laid out for a viewer of Chrome traces.

`NPUGraph.debug_dump` of graphs.py writes them. A dump is a list of events. Here all events of a graph are of one
stream, since a replay computes one operator after the other; torch_npu also merges streams and aligns the events that
they wait for. Tests: tests/sim/simulated/test_graphs.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["align_trace_json"]

_GAP = 0.2
"""Between two events of a stream, in the trace's microseconds."""


def align_trace_json(input: str | Path, output: str | Path | None, merge_gap: float = 0.0) -> Path:
    """Write a dump again with the events of each stream one after the other from time 0.

    Args:
        input: file of the dump.
        output: file that is written; None for the dump's name with `.aligned` before its suffix.
        merge_gap: torch_npu's gap between merged streams; without effect here.

    Returns:
        The file that was written.
    """
    path = Path(input)
    target = path.with_suffix(f".aligned{path.suffix}") if output is None else Path(output)
    ends: dict[Any, float] = {}
    events = sorted(json.loads(path.read_text(encoding="utf-8")), key=lambda event: event["ts"])
    for event in events:
        end = ends.get(event["tid"])
        event["ts"] = 0.0 if end is None else end + _GAP
        ends[event["tid"]] = event["ts"] + event["dur"]
    target.write_text(json.dumps(events, ensure_ascii=False, indent=2), encoding="utf-8")
    return target

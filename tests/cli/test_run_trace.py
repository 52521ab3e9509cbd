"""`toprope run --trace FILE` with real processes: the file is what Perfetto reads.

Holds `cli.reports.trace_file` and `sim.tracing`.
"""

import json
import os
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.native, pytest.mark.process]

PROGRAM = """
    import os, subprocess, sys, torch
    x = torch.ones(1024, 1024, device="npu")
    y = (x @ x).relu()
    child = "import torch; z = torch.ones(8, device='npu:1') * 3; print(z.cpu().sum().item())"
    subprocess.run([sys.executable, "-c", child], check=True)
    stream = torch.npu.Stream()
    with torch.npu.stream(stream):
        y.add_(1)
    torch.npu.synchronize()
    print(os.getpid())
"""


def traced(folder: Path, *options: str) -> tuple[subprocess.CompletedProcess[str], Any, Any]:
    """How the program ended, the report, and the trace."""
    (folder / "program.py").write_text(textwrap.dedent(PROGRAM))
    names = ("TOPROPE_SIM", "TOPROPE_DEVICE", "TOPROPE_RUN_DIR", "TOPROPE_TRACE", "PYTHON", "TORCH", "ASCEND")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(names)}
    command = [sys.executable, "-m", "toprope", "run", "--json", "--chip", "910B3", "--count", "2"]
    done = subprocess.run(
        [*command, "--trace", "t.json", *options, "program.py"],
        cwd=folder, env=kept, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    lines = [line for line in done.stderr.splitlines() if not line.startswith("toprope: ")]  # a first run builds
    assert len(lines) == 1, done.stderr
    return done, json.loads(lines[0]), json.loads((folder / "t.json").read_text())


def test_two_processes_are_in_one_file(tmp_path: Path) -> None:
    done, facts, trace = traced(tmp_path)
    assert done.returncode == 0
    printed, own = done.stdout.split()
    assert printed == "24.0"
    check_form(trace)
    acts = [event for event in trace["traceEvents"] if event["ph"] != "M"]
    assert facts["trace"] == {"path": "t.json", "records": len(acts), "lost": 0, "processes": 2, "error": ""}
    by_process: dict[int, Counter[str]] = {}
    for event in acts:
        by_process.setdefault(event["pid"], Counter())[event["name"]] += 1
    assert len(by_process) == 2
    parent = by_process.pop(int(own))
    assert parent["aten::mm"] == parent["aten::relu"] == 1
    (child,) = by_process.values()
    assert child["aten::mul"] == 1
    assert child["copy from card"] == 1
    # counted the same way
    (totals,) = facts["simulated"]
    names = Counter(event["name"] for event in acts if event["cat"] == "operator")
    assert names == Counter(totals["operators"]["by_name"])
    copies = [event for event in acts if event["cat"] == "copy from card"]
    assert sum(event["args"]["bytes"] for event in copies) == totals["copies"]["from_card"]["bytes"] == 32


def check_form(trace: Any) -> None:
    """Check what the importers of Perfetto and chrome://tracing ask of the JSON object format."""
    assert trace["displayTimeUnit"] in ("ms", "ns")
    named: set[tuple[int, int]] = set()
    for event in trace["traceEvents"]:
        assert event["name"]
        assert {type(event["name"]), type(event["pid"]), type(event["tid"])} == {str, int}
        assert event["ph"] in ("M", "X", "i")
        if event["ph"] == "M":
            assert event["args"]["name"]
            named.add((event["pid"], event["tid"]))
            continue
        assert (event["pid"], event["tid"]) in named
        assert float(event["ts"]) >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
        else:
            assert event["s"] in ("t", "p", "g")


def test_complete_events_of_a_track_nest(tmp_path: Path) -> None:
    """Perfetto drops a slice that overlaps another of its track without lying inside it."""
    _, _, trace = traced(tmp_path, "--hbm", "1GiB")
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            begin = round(event["ts"] * 1000)
            tracks.setdefault((event["pid"], event["tid"]), []).append((begin, begin + round(event["dur"] * 1000)))
    assert len(tracks) >= 4
    for slices in tracks.values():
        open_until: list[int] = []
        for begin, end in sorted(slices, key=lambda each: (each[0], -each[1])):
            while open_until and open_until[-1] <= begin:
                open_until.pop()
            assert not open_until or end <= open_until[-1]
            open_until.append(end)


def test_processes_lie_side_by_side_in_time(tmp_path: Path) -> None:
    """The child runs between two acts of its parent, and the file says so though each process has its own clock."""
    done, _, trace = traced(tmp_path)
    own = int(done.stdout.split()[1])
    acts = {(event["pid"] == own, event["name"]): event["ts"] for event in trace["traceEvents"] if event["ph"] == "X"}
    assert acts[True, "aten::relu"] < acts[False, "aten::mul"] < acts[True, "aten::add_"]

"""benchmarks/device.py runs and measures what it says; the speed of this machine is not asked here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.process]

ROOT = Path(__file__).resolve().parents[2]


def test_it_runs():
    done = subprocess.run(
        [sys.executable, "benchmarks/device.py", "--json", "--megabytes", "16"],
        cwd=ROOT, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)
    assert len(found["calls"]) > 10
    assert all(call["torch"] > 0 and call["ours"] > 0 for call in found["calls"])
    assert found["load"]["megabytes"] == 16
    assert 0 <= found["load"]["host_bytes"] <= 64 * 2**20

"""benchmarks/serve.py runs and measures what it says; how fast this machine is, is not asked here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.native, pytest.mark.process]

ROOT = Path(__file__).resolve().parents[2]


def test_ours_alone():
    words = ["--without-ray", "--untuned", "--rounds", "1", "--seconds", "0.3", "--limit-ms", "60000", "--json"]
    done = subprocess.run(
        [sys.executable, "benchmarks/serve.py", *words], cwd=ROOT, capture_output=True, text=True, timeout=280
    )
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)
    row = found["rows"][0]
    assert row["name"] == "toprope serve"
    assert row["rps"] > 0
    assert 0 < row["p99_ms"] <= 60000

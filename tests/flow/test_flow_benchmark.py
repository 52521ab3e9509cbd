"""benchmarks/flow.py runs and measures what it claims, and ten thousand inputs leave no memory behind."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.native, pytest.mark.process]

ROOT = Path(__file__).resolve().parents[2]


def measured(*arguments, timeout=280):
    environment = {name: value for name, value in os.environ.items() if name != "TOPROPE_SIM"}
    done = subprocess.run(
        [sys.executable, "benchmarks/flow.py", "--json", *arguments],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)
    assert len(found["rows"]) == 10
    assert all(row["ours"] > 0 and row["our_processor"] > 0 for row in found["rows"])
    assert sum(row["limit"] is not None for row in found["rows"]) == 6
    assert 0 < found["growth"]["depth"] <= 128
    assert done.returncode == (not found["growth"]["met"] or False in [row["met"] for row in found["rows"]])
    return found


def test_ours_alone():
    found = measured("--without-ray", "--share", "0.003", "--rounds", "1")
    assert all(row["ray"] is None and row["met"] is None for row in found["rows"])


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_ten_thousand_inputs_leave_nothing():
    growth = measured("--without-ray", "--share", "0.003", "--rounds", "1", "--growth", "10000", timeout=800)["growth"]
    assert growth["count"] == 10_000
    assert growth["met"], growth


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray, the extra `cluster`, is not installed")
def test_beside_ray():
    found = measured("--share", "0.02", "--rounds", "1", timeout=500)
    assert [row["met"] for row in found["rows"] if row["limit"] is not None].count(None) == 0
    assert sum(row["ray"] is not None for row in found["rows"]) == 6

"""benchmarks/functions.py runs and measures what it says; how fast this machine is, is not asked here. That a thousand
instances leave nothing is."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.native, pytest.mark.process]

ROOT = Path(__file__).resolve().parents[2]
BESIDE_RAY = 5
"""Rows whose target is one beside Ray."""


def measured(*arguments: str, timeout: int = 280):
    environment = {name: value for name, value in os.environ.items() if name != "TOPROPE_SIM"}
    done = subprocess.run(
        [sys.executable, "benchmarks/functions.py", "--json", "--share", "0.005", *arguments],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)
    assert all(row["ours"] > 0 for row in found["rows"])
    verdicts = [row["met"] for row in found["rows"] if row["target"]]
    assert done.returncode == (not found["growth"]["met"] or False in verdicts)
    return found


def test_ours_alone():
    found = measured("--without-ray", "--growth", "5")
    assert len(found["rows"]) == 8
    assert [row["met"] for row in found["rows"] if row["target"]].count(None) == BESIDE_RAY
    assert all(row["ray"] is None for row in found["rows"])
    assert found["growth"]["met"], found["growth"]
    assert found["growth"]["before"]["processes"] >= 3


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_thousand_instances_leave_nothing():
    found = measured("--without-ray", "--growth", "1000", timeout=1700)["growth"]
    assert found["count"] == 1000
    assert found["met"], found


@pytest.mark.soak
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray, the extra `cluster`, is not installed")
def test_beside_ray():
    found = measured("--growth", "5")
    assert len(found["rows"]) == 10
    assert None not in [row["met"] for row in found["rows"] if row["target"]]
    assert found["growth"]["met"], found["growth"]

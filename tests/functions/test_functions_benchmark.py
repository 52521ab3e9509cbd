"""benchmarks/functions.py runs and measures what it claims, and a thousand instances leave nothing."""

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


def run(*arguments: str, timeout: int = 280):
    environment = {name: value for name, value in os.environ.items() if name != "TOPROPE_SIM"}
    return subprocess.run(
        [sys.executable, "benchmarks/functions.py", "--json", "--share", "0.005", *arguments],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout,
    )  # fmt: skip


def measured(*arguments: str, timeout: int = 280):
    done = run(*arguments, timeout=timeout)
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)
    if "growth" not in found:
        assert done.returncode == ("slower" in [row["verdict"] for row in found["rows"]])
        return found
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


def test_beside_another_version():
    """Itself: which is faster is not asked here."""
    found = measured("--old", str(ROOT), "--rounds", "2")["rows"]
    assert len(found) == 7
    assert all(row["interval"][0] <= row["ratio"] <= row["interval"][1] for row in found)
    assert {row["verdict"] for row in found} <= {"slower", "undecided: more rounds", "no more than 5% slower"}


def test_a_folder_that_is_no_work_tree_is_refused(tmp_path):
    done = run("--old", str(tmp_path))
    assert done.returncode == 1
    assert f"{tmp_path} is no work tree of toprope" in done.stderr


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

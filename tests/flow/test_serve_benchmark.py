"""benchmarks/serve.py runs and measures what it claims; speed is not tested here."""

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


def test_the_interval_of_a_ratio_leaves_out_as_many_rounds_as_95_percent_allow(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from parts.ratios import ratio

    for count, low in ((1, 1), (5, 1), (6, 1), (8, 1), (9, 2), (15, 4)):
        found = ratio(range(1, count + 1), [1] * count)
        assert (found.median, found.low, found.high) == ((count + 1) / 2, low, count + 1 - low)
        assert (found.coverage >= 0.95) == (count >= 6)
    assert str(ratio([3, 1, 2], [2, 2, 2])) == "1.00 (0.50 to 1.50, 75 %)"

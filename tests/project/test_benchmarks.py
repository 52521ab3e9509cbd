"""benchmarks/run.py and growth.py: their output, also for a benchmark that gives nothing.

The figures themselves are not tested: see docs/benchmarks.md.
"""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))

    def loaded(name):
        monkeypatch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name)

    yield loaded
    sys.modules.pop("run", None)


@pytest.fixture
def scripts(load, monkeypatch, tmp_path):
    """Gives the module with these benchmarks in the place of the real ones: text of a script by name."""
    run = load("run")
    monkeypatch.setattr(run, "ROOT", tmp_path)
    (tmp_path / "benchmarks").mkdir()

    def made(**texts):
        for name, text in texts.items():
            (tmp_path / "benchmarks" / f"{name}.py").write_text(text)
        monkeypatch.setattr(run, "BENCHMARKS", {name: run.Benchmark(name, run._sim, 60) for name in texts})
        return run

    return made


ROW = {"name": "add | of 16", "cpu": 2.0, "npu": 3.0, "target": "<= 1.7x", "met": True}


def test_rows_of_all_parts_are_one_table(scripts, tmp_path) -> None:
    missed = {**ROW, "npu": 4.0, "met": False}
    run = scripts(one=f"print({json.dumps(json.dumps([ROW]))})", two=f"print({json.dumps(json.dumps([missed]))})")
    found = {name: run.run(name, tmp_path) for name in ("one", "two")}
    assert run.table(found).splitlines()[2:4] == [
        "| one | add | of 16 | 3 us | CPU 2 us | 1.50 | <= 1.7x | met |",
        "| two | add | of 16 | 4 us | CPU 2 us | 2.00 | <= 1.7x | missed |",
    ]


def test_a_benchmark_that_fails_hangs_or_prints_something_else_is_named(scripts, monkeypatch, tmp_path) -> None:
    run = scripts(
        fails="import sys; sys.exit('no room')", hangs="import time; time.sleep(100)", talks="print('no corpus here')"
    )
    monkeypatch.setitem(run.BENCHMARKS, "hangs", run.Benchmark("hangs", run._sim, 1))
    monkeypatch.setitem(run.BENCHMARKS, "lacks", run.Benchmark("talks", run._sim, 60, needs="no_such_module"))
    reasons = {name: run.run(name, tmp_path).reason for name in run.BENCHMARKS}
    assert reasons == {
        "fails": "gave no figures (exit status 1): no room",
        "hangs": "ended after 1 s",
        "talks": "gave no figures (exit status 0): no corpus here",
        "lacks": "no_such_module is not installed",
    }


def test_every_script_is_run_or_said_to_be_no_part_of_it(load) -> None:
    run = load("run")
    apart = {"run", "estimates", "model_estimates", "other_model", "flow_machines"}  # accuracy, and two machines
    assert {each.script for each in run.BENCHMARKS.values()} | apart == {path.stem for path in BENCHMARKS.glob("*.py")}
    assert sum(each.limit for each in run.BENCHMARKS.values()) <= 30 * 60


def test_growth_is_measured_and_drawn(tmp_path) -> None:
    figure = tmp_path / "growth.svg"
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "growth.py", "--share", "0.1", "--json", "--figure", figure,
         "--part", "operators", "port"],
        capture_output=True, text=True, timeout=280, check=True,
    )  # fmt: skip
    panels = json.loads(done.stdout)
    assert [sorted(panel["lines"]) for panel in panels] == [["CPU", "toprope, npu"], ["toprope"]]
    for line in (line for panel in panels for line in panel["lines"].values()):
        sizes = [size for size, _ in line]
        assert sizes == sorted(sizes)
        assert len(sizes) >= 2
        assert all(seconds > 0 for _, seconds in line)
    picture = ElementTree.fromstring(figure.read_text())
    assert len(picture.findall(".//{http://www.w3.org/2000/svg}polyline")) == 3

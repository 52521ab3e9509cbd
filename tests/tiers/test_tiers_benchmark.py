"""benchmarks/tiers.py and tiers_training.py measure what they claim, and the code in docs/tiers.md runs.

Speed is not tested here.
"""

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest
import torch

from toprope.tiers.store.spill import SpillStore

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=["tiers"])
def bench(request, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    name = request.param
    spec = importlib.util.spec_from_file_location(f"benchmarks_{name}", ROOT / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield module
    torch.set_grad_enabled(True)
    torch.set_num_threads(threads)


@pytest.mark.soak
def test_passes_from_disk_and_host_are_measured_beside_accelerate(bench, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["tiers.py", "--quick", "--json", "--rows", "3", "--folder", str(tmp_path)])
    bench.main()
    told = json.loads(capsys.readouterr().out)
    names = [each["name"] for each in told["rows"]]
    assert names == ["disk, 3 rows", "disk, 3 rows, copied", "host, 1 GB/s, 16 rows", "host, 1 GB/s, 128 rows"]
    for each in told["rows"]:
        assert each["runs"] == 1
        assert each["ratio"] > 0
        assert each["notes"]["limit_s"] > 0
    assert told["rows"][0]["others"]["accelerate"] > 0
    assert told["python_us_a_layer"] > 0
    assert told["memory_of_budget"] > 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("bench", ["tiers_training"], indirect=True)
def test_a_step_of_training_is_measured_against_memory_and_the_disk(bench, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["tiers_training.py", "--quick", "--json", "--folder", str(tmp_path)])
    # What is on its way to a busy disk is not read from it, and not counted yet.
    put = SpillStore.put
    monkeypatch.setattr(SpillStore, "put", lambda store, *what: (put(store, *what), store.flush()))
    assert bench.main() == 0
    told = json.loads(capsys.readouterr().out)
    (row,) = told["rows"]
    assert (row["name"], row["runs"], row["target"]) == ("training, 8 rows", 1, 1.3)
    weights = 2 * 768 * 768 * 4
    notes = row["notes"]
    assert notes["moved_mb"] >= 4 * weights / 1e6  # two states of Adam, read and written
    assert notes["limit_s"] == max(notes["in memory_s"], notes["disk_s"])
    assert row["ratio"] == pytest.approx(notes["step_s"] / notes["limit_s"])
    assert bench.line(bench.Row("x", 1.0, 1.3, 1, 0, (1.0, 1.0))).count("met") == 1
    assert not list(tmp_path.iterdir())


def test_the_targets_are_those_that_were_set(bench):
    assert bench.TARGETS == {
        "disk, 1 row": 1.15, "disk, 128 rows": 1.25, "disk, 512 rows": 1.25, "disk, 1 row, copied": 1.15,
        "disk, 128 rows, copied": 1.25, "host, 4 GB/s, 16 rows": 1.10,
    }  # fmt: skip


def test_a_link_carries_no_more_than_it_may(bench):
    from toprope.tiers.store.transfer import Link

    link = Link(1e9)
    begin = bench.time.perf_counter()
    for _ in range(5):
        link.carry(10_000_000, bench.time.perf_counter())
    assert bench.time.perf_counter() - begin >= 0.045


TURNS = """
import sys
from contextlib import contextmanager
import toprope
from parts.old_code import is_served, serve

speed = getattr(toprope, "SPEED", 1.0)

@contextmanager
def row():
    print("not an answer")
    yield lambda: speed

@contextmanager
def new():
    if speed == 2.0:
        raise ImportError("the old code has no such thing")
    yield lambda: speed

assert is_served()
serve({"both": row, "new": new, "last": row})
"""


@pytest.mark.usefixtures("bench")
def test_rows_are_compared_with_the_code_of_another_checkout(tmp_path):
    from parts.old_code import compare, report

    script, old = tmp_path / "turns.py", tmp_path / "old" / "src" / "toprope"
    script.write_text(TURNS)
    (tmp_path / "parts").symlink_to(ROOT / "benchmarks" / "parts")
    old.mkdir(parents=True)
    (old / "__init__.py").write_text("SPEED = 2.0\n")
    both, new, last = compare(script, [], tmp_path / "old", ["both", "new", "last"], 6)
    assert (both.ratio, both.new, both.old, both.rounds, both.met) == (0.5, 1.0, 2.0, 6, True)
    assert (new.met, new.rounds) == (False, 0)
    assert new.missing == "the old code: ImportError: the old code has no such thing"
    assert last.ratio == 0.5
    assert report([both, last], as_json=False) == 0
    assert report([both, new], as_json=True) == 1
    with pytest.raises(SystemExit, match="has no toprope"):
        compare(script, [], tmp_path / "nowhere", ["both"], 1)


@pytest.mark.usefixtures("bench")
def test_the_interval_of_a_median_is_one_between_two_of_the_rounds():
    from parts.old_code import interval

    assert interval([9, 1, 2, 8, 3, 7, 4, 6, 5]) == (2, 8, pytest.approx(0.961, abs=1e-3))
    assert interval([3, 1, 2]) == (1, 3, 0.75)
    assert interval([1]) == (1, 1, 0)
    assert interval(range(30))[2] >= 0.95


def test_the_code_in_the_docs_runs(capsys):
    page = (ROOT / "docs" / "tiers.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    code = next(each for each in blocks if "attach(" in each)
    exec(compile(code, "docs/tiers.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    shown = [line.partition("# ")[2] for line in code.splitlines() if line.strip().startswith("print(")]
    assert printed == shown

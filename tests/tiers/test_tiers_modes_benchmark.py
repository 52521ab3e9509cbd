"""benchmarks/modes.py measures what it claims; speed is not tested here."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from toprope.tiers import modes
from toprope.tiers.modes import switch

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bench(monkeypatch):
    spec = importlib.util.spec_from_file_location("benchmarks_modes", ROOT / "benchmarks" / "modes.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    found = modes.Verdict("cpu", "nvfp4", torch.float32, ((1, 2.0), (32, 2.0)))
    monkeypatch.setattr(switch, "verdict", lambda device, format: found)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield module
    modes.disable()
    torch.set_num_threads(threads)


def test_the_same_model_runs_in_each_mode_and_the_error_is_that_of_the_mode(bench):
    logits, figures = {}, {}
    for mode in bench.MODES:
        runs = bench.Runs(mode, 128, 2)
        figures[mode] = runs.figures()
        wall, mine, logits[mode] = runs.run("decoding", 32)
        assert wall > 0
        assert mine > 0
        assert runs.run("reading in", 1)[2].shape == (1, bench.VOCABULARY)
        modes.disable()
    assert figures["plain"] == {}
    assert torch.equal(logits["balanced"], logits["plain"])
    errors = {mode: float((each - logits["plain"]).norm() / logits["plain"].norm()) for mode, each in logits.items()}
    assert 0 < errors["memory"] < 0.02 < errors["speed"] < 0.3
    assert figures["speed"]["quantised_layers"] == 13
    assert 0.08 < figures["speed"]["largest_weight_error"] < 0.09


def test_the_verdict_is_of_the_ratio_that_counts(bench):
    seconds = {"plain": [(3.0, 2.0), (3.0, 2.0)], "speed": [(1.0, 1.5), (1.0, 1.5)]}
    for loaded, kind, held, told in (
        (False, "decoding", True, "met"),
        (True, "decoding", True, "missed"),
        (True, "decoding", False, ""),
        (True, "reading in", True, ""),
    ):
        plain, speed = bench.rows_of(
            seconds, {"plain": 0.0, "speed": 0.2}, {"plain": {}, "speed": {"largest_weight_error": 0.09}},
            kind=kind, batch=1, loaded=loaded, held=held,
        )  # fmt: skip
        assert (plain["x of plain"], plain[""]) == (1.0, "")
        assert (speed["x of plain"], speed["x of plain, CPU"]) == (3.0, pytest.approx(4 / 3))
        assert (speed["error of logits"], speed[""]) == (0.2, told)
    chosen = bench.arguments(["--loaded", "--modes", "speed"])
    assert (chosen.threads, chosen.modes) == (1, ["plain", "speed"])

"""Unmodified transformers and accelerate choose the simulated card by themselves, and give the CPU's numbers on it.

Holds the simulated card and the torch_npu facade with real libraries; the programs are in tests/helpers/programs.
"""

import json
import os
import pathlib
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.native, pytest.mark.process]

PROGRAMS = pathlib.Path(__file__).resolve().parents[1] / "helpers" / "programs"
TOPROPE = [sys.executable, "-m", "toprope", "run"]
CARD, CPU = ("--chip", "910B3"), ("--device", "cpu")

pytest.importorskip("transformers")
pytest.importorskip("accelerate")


def run(where, program, *arguments, folder):
    """What a program printed last, and the report of the run; offline, in processes of its own."""
    done = subprocess.run(
        [*TOPROPE, *where, str(PROGRAMS / program), *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=folder,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder), "TOKENIZERS_PARALLELISM": "false"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def on_both(program, folder, takes_folder=False):
    """The program's results on the card and on the CPU, and the report about the card."""
    results = []
    for name, where in (("card", CARD), ("cpu", CPU)):
        own = folder / name
        own.mkdir()
        results.append(run(where, program, *([str(own / "out")] if takes_folder else []), folder=own))
    (card, report), (cpu, _) = results
    assert "ran on npu:0, a simulated Ascend 910B3" in report
    assert cpu.pop("device") == "cpu"
    return card, cpu


@pytest.mark.soak
def test_trainer(tmp_path):
    """Training, a checkpoint, resuming from it with the card's random state, and an evaluation."""
    card, cpu = on_both("llama_trainer.py", tmp_path, takes_folder=True)
    assert card.pop("device") == card.pop("weights") == "npu:0"
    assert cpu.pop("weights") == "cpu"
    assert card["optimizer"] == cpu["optimizer"] == "AdamW"
    assert len(card["losses"]) == len(cpu["losses"]) == 8
    assert card["losses"] == pytest.approx(cpu["losses"], rel=1e-5)
    assert card["evaluation"] == pytest.approx(cpu["evaluation"], rel=1e-5)


@pytest.mark.soak
def test_generate(tmp_path):
    """Greedy and beam search, with a padded prompt; flash attention goes through npu_fusion_attention."""
    card, cpu = on_both("llama_generate.py", tmp_path)
    assert card.pop("device") == "npu:0"
    assert cpu["eager"] == cpu["sdpa"]
    assert sorted(card) == ["eager", "flash_attention_2", "sdpa"]
    rows = cpu["sdpa"]["greedy"]
    assert [len(row) for row in rows] == [30, 30]
    assert len(set(rows[0][6:])) > 8
    for kind, tokens in card.items():
        assert tokens == cpu["sdpa"], kind


@pytest.mark.soak
def test_accelerator(tmp_path):
    """Accelerator prepares the model after the optimizer was made: its parameters must stay the same objects."""
    card, cpu = on_both("accelerator_train.py", tmp_path)
    assert card.pop("device") in ("npu", "npu:0")
    assert card.pop("data") == ["npu:0"]
    assert cpu.pop("data") == ["cpu"]
    assert card["losses"] == pytest.approx(cpu["losses"], rel=1e-4)
    assert card["weights"] == pytest.approx(cpu["weights"], rel=1e-4)
    assert sum(cpu["losses"][-4:]) < sum(cpu["losses"][:4])

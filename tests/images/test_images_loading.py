"""Loading and identifying a model: the host's memory that it takes, and the number of times that its files are read.

Holds `images.families.loading`, `images.results.files_of` and `images.runs.output`.
"""

import json
import subprocess
import sys

import pytest

from images_tiny import QUIET, picture, tiny
from toprope.images import EditRequest, Engine
from toprope.images.runs.jobs import Job
from toprope.images.runs.output import Output

pytestmark = [*QUIET, pytest.mark.slow, pytest.mark.process]

PROGRAM = """
import json, sys, threading, time
from pathlib import Path
import torch
torch.set_num_threads(1)
folder = Path(sys.argv[1])

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

from diffusers import FluxKontextPipeline
from toprope.images import Engine
before, peak, done = resident(), [0], threading.Event()

def watch():
    while not done.wait(0.001):
        peak[0] = max(peak[0], resident())

thread = threading.Thread(target=watch)
thread.start()
engine = Engine.open(folder, device="cpu", dtype="bf16")
done.set()
thread.join()
parts = [each for each in engine.loaded.pipeline.components.values() if isinstance(each, torch.nn.Module)]
weights = sum(each.nbytes for part in parts for each in part.parameters())
print(json.dumps({"taken": peak[0] - before, "weights": weights}))
"""
SPARE = 64 * 2**20
"""Bytes for what is imported meanwhile; a second copy of the model would take 156 MiB."""


def test_loading_takes_the_weights_and_one_shard_and_no_second_copy(tmp_path) -> None:
    from diffusers import FluxTransformer2DModel

    folder = tmp_path / "model"
    for name in tiny("kontext").rglob("*"):
        if name.is_file() and name.parent.name != "transformer":
            to = folder / name.relative_to(tiny("kontext"))
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(name.read_bytes())
    FluxTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=6, num_single_layers=6, attention_head_dim=64, num_attention_heads=8,
        joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=[16, 24, 24], guidance_embeds=True,
    ).save_pretrained(folder / "transformer", max_shard_size="60MB")  # fmt: skip
    command = [sys.executable, "-c", PROGRAM, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    shards = [each.stat().st_size for each in (folder / "transformer").glob("*.safetensors")]
    assert len(shards) > 4
    assert found["weights"] > 150 * 2**20
    assert found["taken"] <= found["weights"] + max(shards) + SPARE


def test_the_engine_compares_a_record_with_the_files_that_it_has_read_once(tmp_path, monkeypatch) -> None:
    """The command line hashed them all a second time on the way of an edit."""
    source = tmp_path / "cat.png"
    picture(32, 32).save(source)
    asked = EditRequest(str(source), "make it snow", steps=1, seed=3, max_pixels=1024)
    with Engine.open(tiny("kontext"), device="cpu") as engine:
        result = engine.edit(asked)
        (path,) = Output(tmp_path / "out").save(Job(asked, "cat"), result.pictures, result.record)
        record = json.loads(path.with_suffix(".json").read_text())
        monkeypatch.setattr("toprope.images.results._hash", lambda *_: pytest.fail("it was read again"))
        assert record["model_files"] == engine.files
        assert engine.differences(record) == []
        name = next(each for each in record["model_files"] if each.endswith(".safetensors"))
        record["model_files"][name]["sha256"] = "other"
        record["versions"]["torch"] = "0.4"
        record["engine"]["dtype"] = "float16"
        model, dtype, versions = engine.differences(record)
        assert model == f"the model is not the one of the record: {name}"
        assert dtype.startswith("the dtype is ")
        assert versions.startswith("versions differ, here are torch ")

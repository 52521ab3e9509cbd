"""A folder of images through the pipeline of examples/image_pipeline: its results, and the copies on the way."""

import importlib.util
import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

import pytest

if any(importlib.util.find_spec(each) is None for each in ("PIL", "transformers")):
    pytest.skip("pip install pillow transformers", allow_module_level=True)

from device_stand_ins import environment

pytestmark = [pytest.mark.slow, pytest.mark.native, pytest.mark.process]

PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "image_pipeline.py"
GOOD = 5


def run(folder, *options):
    """The example on six images that it draws, of which the third is cut off; its report."""
    variables = environment()
    variables.pop("TORCH_DEVICE_BACKEND_AUTOLOAD", None)  # the card is found by it in the stages
    done = subprocess.run(
        [sys.executable, "-m", "toprope", "run", "--json", *options, str(PROGRAM), "--out", "out", "--draw", "6",
         "--check"],
        cwd=folder, env=variables, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"labelled {GOOD} of 6 images", "wrote out/labels.jsonl, out/graph.svg, out/trace.json",
    ]  # fmt: skip
    said = done.stderr.splitlines()
    assert "002.png was left out: image file is truncated" in said
    assert said.count("6 of 6 images") == 1
    lines = [json.loads(line) for line in (folder / "out" / "labels.jsonl").read_text().splitlines()]
    assert [each["image"] for each in lines] == ["000.png", "001.jpg", "002.png", "003.jpg", "004.png", "005.jpg"]
    assert lines.pop(2)["error"] == "OSError: image file is truncated"
    for each in lines:  # that they are those of plain PyTorch, the program has checked
        assert len({label["label"] for label in each["labels"]}) == 3
        scores = [label["score"] for label in each["labels"]]
        assert scores == sorted(scores, reverse=True)
    assert len({json.dumps(each["labels"]) for each in lines}) == GOOD
    return json.loads(next(line for line in reversed(said) if line.startswith("{")))


def texts(path):
    return [each.text for each in ElementTree.parse(path).iter() if each.text]


@pytest.mark.soak
def test_images_are_labelled_on_the_card_with_one_copy_there_and_one_back(tmp_path):
    facts = run(tmp_path, "--chip", "910B3", "--trace", "card.json")
    assert facts["simulated"][0]["copies"]["from_card"]["number"] == GOOD
    # by process: the stage that crops has the images copied to the card, the model's its weights, once each
    acts = {}
    for event in json.loads((tmp_path / "card.json").read_text())["traceEvents"]:
        acts.setdefault(event["pid"], Counter())[event["name"]] += 1
    stages = [each for each in acts.values() if each["copy to card"] or each["copy from card"]]
    cropping = [each for each in stages if each["aten::upsample_bilinear2d"]]
    classifying = [each for each in stages if each["aten::convolution"]]
    assert (len(stages), len(cropping), len(classifying)) == (2, 1, 1), acts
    assert (cropping[0]["copy to card"], cropping[0]["copy from card"]) == (GOOD, 0)
    assert classifying[0]["copy from card"] == GOOD
    picture = texts(tmp_path / "out" / "graph.svg")
    assert {"Images to labels", "decode_fnode", "crop_fnode", "Classify_fnode", "postprocess_fnode"} <= set(picture)
    assert any(each.startswith("6 sent, ") for each in picture)
    assert f"{GOOD} to host" in picture
    acts = json.loads((tmp_path / "out" / "trace.json").read_text())["traceEvents"]
    assert sum(each["ph"] == "X" for each in acts) >= 4 * GOOD


@pytest.mark.soak
def test_images_are_labelled_on_the_cpu(tmp_path):
    facts = run(tmp_path, "--device", "cpu")
    assert facts["device"] == "cpu"
    assert (tmp_path / "out" / "graph.svg").is_file()

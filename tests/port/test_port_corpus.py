"""Whole programs, ported: excerpts of our own writing here, public repositories from TOPROPE_CORPUS in a soak.

The measure is benchmarks/parts: a scan that shares no code with the port, and a reader's verdicts.
"""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from toprope.port import Kind, port

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from parts.port_corpus import commits, folders, port_repository
from parts.port_labels import figures, read
from parts.port_oracle import oracle
from parts.port_sites import own_names, sites

import port_stand_ins

pytestmark = pytest.mark.process

CORPUS = os.environ.get("TOPROPE_CORPUS", "")
BEFORE, AFTER, EDITOR = "pytorch+examples-before", "pytorch+examples", "HiDream-ai+HiDream-E1"


def needs(*names):
    """For tests of repositories: a soak, and the folder must have them."""
    missing = [name for name in names if not Path(CORPUS, name).is_dir()]
    reason = f"TOPROPE_CORPUS has no {', '.join(missing)}"
    return lambda test: pytest.mark.soak(pytest.mark.skipif(not CORPUS or bool(missing), reason=reason)(test))


TRAINER = '''
"""Learns to tell two kinds of points apart."""
import argparse

import torch
from torch import nn
import torch.backends.cudnn as cudnn
from torch.cuda.amp import GradScaler, autocast

parser = argparse.ArgumentParser()
parser.add_argument("--no-cuda", action="store_true", default=False, help="disables CUDA training")
parser.add_argument("--dist-backend", default="nccl")
args = parser.parse_args()
args.cuda = not args.no_cuda and torch.cuda.is_available()
if args.cuda:
    device = torch.device("cuda")
    cudnn.benchmark = True
else:
    device = torch.device("cpu")
kwargs = {"pin_memory": True} if args.cuda else {}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        return self.layer(x.float())


torch.manual_seed(0)
torch.cuda.manual_seed_all(0)
model = Net()
model.cuda() if args.cuda else model.cpu()
scaler = GradScaler()
points = torch.randn(8, 2)
data = torch.utils.data.TensorDataset(points, (points.sum(1) > 0).long())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in torch.utils.data.DataLoader(data, batch_size=4, **kwargs):
    x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
    optimizer.zero_grad()
    with autocast():
        loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
torch.cuda.synchronize()
torch.cuda.empty_cache()
torch.save(model.state_dict(), "model.pt")
model.load_state_dict(torch.load("model.pt"))
print("LOSS", loss.device.type, bool(torch.isfinite(loss)), "cuda:0 is fast")
'''
LOADER = '''
"""Loads an editor of pictures as its authors do, and draws once."""
import torch
from safetensors.torch import load_file, safe_open


class Pipe:
    def __init__(self, model):
        self.model = model

    def to(self, device, dtype):
        self.model.to(device, dtype)
        return self


model = torch.nn.Linear(4, 4)
weights = load_file("editor.safetensors", device="cuda")
info = model.load_state_dict(weights, strict=False)
assert len(info.unexpected_keys) == 0
with safe_open("editor.safetensors", framework="pt", device="cpu") as file:
    names = sorted(file.keys())
pipe = Pipe(model).to("cuda", torch.bfloat16)
print(f"Current CUDA memory: {torch.cuda.memory_summary(device='cuda', abbreviated=True) is not None}")
generator = torch.Generator("cuda").manual_seed(3)
drawn = torch.randn(4, generator=generator, device="cuda", dtype=torch.bfloat16)
out = pipe.model(drawn)
print("EDITOR", out.device.type, out.dtype, names, {"cuda": 11.8})
'''


def test_excerpts_are_converted_and_a_second_run_makes_no_edit():
    # the default "nccl" stays a text, which nothing in the excerpt reads
    for program, left in ((TRAINER, {"--no-cuda", "cudnn.benchmark", "nccl"}), (LOADER, {"cuda"})):
        ported = port(program.encode())
        text = ported.after.decode()
        ast.parse(text)
        assert port(ported.after).after == ported.after
        own = own_names([program])
        assert {each.text for each in sites(text, own) if each.kind != "import"} == left
        assert {"use_cuda", "cuda:0 is fast"}.isdisjoint(each.before for each in ported.findings)
        preserving = [each for each in ported.findings if each.rule.kind is Kind.PRESERVING]
        assert len(preserving) >= 5
        assert all(each.converted for each in preserving)


@pytest.mark.slow
@pytest.mark.parametrize("card", [False, True], ids=["cpu", "card"])
def test_excerpts_run(tmp_path, card):
    save_file({"weight": torch.ones(4, 4), "bias": torch.zeros(4)}, tmp_path / "editor.safetensors")
    (tmp_path / "trainer.py").write_bytes(port(TRAINER.encode()).after)
    (tmp_path / "loader.py").write_bytes(port(LOADER.encode()).after)
    both = 'runpy.run_path("loader.py")'
    said = port_stand_ins.run(tmp_path / "trainer.py", folder=tmp_path, card=card, then=both).splitlines()
    kind = "npu" if card else "cpu"
    assert said[0] == f"LOSS {kind} True cuda:0 is fast"
    assert said[2] == f"EDITOR {kind} torch.bfloat16 ['bias', 'weight'] {{'cuda': 11.8}}"
    assert said[3].startswith(f"DEVICE {kind} ")
    assert (int(said[3].split()[2]) > 0) == card


def test_the_look_finds_what_is_there_and_no_more():
    program = (
        "import flash_attn\nfrom torch import cuda as c\nuse_cuda = c.is_available()\nx.cuda(0).to(1)\n"
        'y = x.to("cuda")  # cuda\nprint("cuda is fast", "https://nvidia.com")\n'
        'if e == "CUDA out of memory":\n    use_cuda\n'
        '"""cuda"""\nload(pin_memory=True)\nconfig.use_cuda\nflash_attn.run(x)\n'
    )
    found = [(each.line, each.text) for each in sites(program, own_names([program]))]
    assert found == [
        (1, "import flash_attn"), (2, "from torch import cuda as c"), (4, "x.cuda"), (4, "to"), (5, "cuda"),
        (7, "CUDA out of memory"), (10, "pin_memory"),
    ]  # fmt: skip


def test_labels_are_whole():
    labels = read()
    known = commits()
    assert sum(verdict == "site" for verdict in labels["site"].values()) >= 200
    assert sum(verdict == "right" for verdict in labels["edit"].values()) >= 300
    assert set(labels["site"].values()) <= {"site", "none"}
    assert set(labels["edit"].values()) <= {"right", "wrong", "needless"}
    assert {key[0] for kind in labels.values() for key in kind} == set(known)
    assert all(re.fullmatch(r"[0-9a-f]{40}", commit) for commit in known.values())


def test_the_benchmark_runs(tmp_path):
    (tmp_path / "trainer.py").write_text(TRAINER)
    done = subprocess.run(
        [sys.executable, "benchmarks/port.py", "--json", str(tmp_path)],
        cwd=Path(__file__).resolve().parents[2], capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    said = json.loads(done.stdout)
    (row,) = said["repositories"]
    # neither: a CUDA name in a text, and two that need nothing (cuDNN's switch, a loader's pin_memory)
    assert (row["files"], row["lines"], row["neither"], row["broken"]) == (1, TRAINER.count("\n"), 3, [])
    assert row["edits"] >= row["converted"] >= 7
    assert said["all"]["met"]["a second run changes nothing"]
    assert said["all"]["preserving_converted"] == 1


@needs(*commits())
def test_every_place_of_the_repositories_is_dealt_with_and_no_edit_is_wrong():
    looked = [port_repository(folder) for folder in folders([])]
    assert len(looked) >= 12
    for each in looked:
        assert each.files
        assert each.broken == []
        assert each.again == 0
    said = figures(looked)
    assert said.missed == []
    assert said.recall >= 0.99
    assert said.bad == []
    assert said.gone == []
    assert said.edits["right"] >= 300
    assert said.edits["unread"] == 0
    found, converted = (sum(part) for part in zip(*(each.counts(Kind.PRESERVING) for each in looked), strict=True))
    assert converted >= 0.97 * found


@needs(BEFORE, AFTER)
def test_what_the_maintainers_of_the_examples_removed_is_gone():
    said = oracle(port_repository(Path(CORPUS, BEFORE)), Path(CORPUS, AFTER))
    assert said.removed >= 80
    assert said.rate_but_for_options >= 0.95
    assert said.silent == []
    assert said.gone + said.reported == said.removed


EXAMPLES = {
    "mnist": "--dry-run --epochs 1 --batch-size 8 --test-batch-size 64",
    "vae": "--epochs 1 --batch-size 64",
    "siamese_network": "--dry-run --epochs 1 --batch-size 4 --test-batch-size 64",
    "dcgan": "--dataset fake --dry-run --batchSize 4 --ngf 4 --ndf 4 --workers 0 --cuda",
}


@needs(BEFORE)
@pytest.mark.parametrize("card", [False, True], ids=["cpu", "card"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_make_a_step(tmp_path, name, card):
    port_stand_ins.lay(tmp_path / "torchvision", port_stand_ins.TORCHVISION)
    program = tmp_path / name / "main.py"
    (program.parent / "results").mkdir(parents=True)
    program.write_bytes(port(Path(CORPUS, BEFORE, name, "main.py").read_bytes()).after)
    options = [each for each in EXAMPLES[name].split() if card or each != "--cuda"]
    said = port_stand_ins.run(program, *options, folder=tmp_path, card=card).splitlines()
    assert said[-1].split()[:2] == ["DEVICE", "npu" if card else "cpu"]
    assert (int(said[-1].split()[2]) > 0) == card
    assert any("loss" in line.lower() for line in said)


TABLE_A = [
    ("inference_e1_1.py", 107), ("inference_e1_1.py", 153), ("inference_e1_1.py", 110), ("inference.py", 38),
    ("inference.py", 64), ("inference.py", 88), ("gradio_demo_1_1.py", 107), ("gradio_demo_1_1.py", 125),
]  # fmt: skip
INIT = "found['init_models']()\nfound['pipe'] = found['init_models'].__globals__['pipe']\n"
CALL = """
import torch
generator = torch.Generator(portable.device()).manual_seed(1)
found["pipe"](generator=generator, reload_keys=found["reload_keys"])
"""


@needs(EDITOR)
def test_the_sites_of_the_editor_are_converted():
    looked = port_repository(Path(CORPUS, EDITOR))
    assert {place.state for place in looked.places} == {"converted"}
    assert looked.left == 0
    assert looked.broken == []
    made = {(path, finding.line) for path, finding in looked.edits()}
    assert made >= set(TABLE_A)


@needs(EDITOR)
@pytest.mark.parametrize("card", [False, True], ids=["cpu", "card"])
def test_the_editors_load_tiny_weights(tmp_path, card):
    port_stand_ins.lay(tmp_path, port_stand_ins.MODELS)
    for path in Path(CORPUS, EDITOR).glob("*.py"):
        if not (tmp_path / path.name).exists():
            (tmp_path / path.name).write_bytes(port(path.read_bytes()).after)
    weights = {"final_layer.weight": torch.ones(4, 4), "final_layer.bias": torch.zeros(4)}
    (tmp_path / "weights").mkdir()
    save_file(weights | {"lora_A.weight": torch.ones(2, 4)}, tmp_path / "weights" / "HiDream-E1-Full.safetensors")
    folder = tmp_path / "HiDream-ai" / "HiDream-E1-1" / "transformer"
    folder.mkdir(parents=True)
    save_file(weights, folder / "a.safetensors")
    index = ", ".join(f'"{name}": "a.safetensors"' for name in weights)
    (folder / "diffusion_pytorch_model.safetensors.index.json").write_text(f'{{"weight_map": {{{index}}}}}')
    (tmp_path / "assets").mkdir()
    from PIL import Image

    Image.new("RGB", (8, 8)).save(tmp_path / "assets" / "test_1.png")
    kind = "npu" if card else "cpu"
    then = "from toprope.device import portable\n"
    said = port_stand_ins.run(tmp_path / "inference.py", folder=tmp_path, card=card)
    assert f"PIPELINE {kind} torch.bfloat16 ['editing', 'refine']" in said
    assert (tmp_path / "output.jpg").exists()
    for name, more in (("gradio_demo.py", ""), ("inference_e1_1.py", INIT), ("gradio_demo_1_1.py", INIT)):
        behind = then + more
        if more:
            behind += "found['reload_keys'] = found['init_models'].__globals__['reload_keys']\n"
        said = port_stand_ins.run(tmp_path / name, folder=tmp_path, card=card, then=behind + CALL, name="loaded")
        assert f"PIPELINE {kind} torch.bfloat16 ['editing', 'refine']" in said, name

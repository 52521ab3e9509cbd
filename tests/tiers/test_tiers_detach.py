"""`Handle.detach` and `close`: a usable model comes back, or there is one error and nothing has changed."""

import gc
import json
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from device_stand_ins import environment
from toprope.errors import TierAbsentError, TierCapacityError, TierChangedError, TopropeError, UsageError
from toprope.tiers import attach, skeleton

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("one_thread")]
X = torch.linspace(-1, 1, 3 * 64).view(3, 64)


def net():
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(64, 64) for _ in range(6)])


@pytest.fixture
def folder(tmp_path):
    save_file(net().state_dict(), tmp_path / "model.safetensors")
    return tmp_path


def read(folder):
    with skeleton():
        model = net()
    return attach(model, 60_000, 20_000, folder, on="cpu", small=1000)


def read_back(model, folder):
    return attach(model, 60_000, 20_000, folder, on="cpu", small=1000).detach()


@pytest.mark.parametrize("device", [None, "cpu", torch.device("cpu")], ids=str)
@pytest.mark.parametrize("graph", [True, False], ids=["graph", "no graph"])
@pytest.mark.parametrize("half", [True, False], ids=["half", "float"])
def test_a_skeleton_is_usable_after_detach(half, graph, device, folder):
    """It went back to meta without a word; with a graph that was alive, half of it did, and then an error came."""
    handle = read(folder)
    model, x, whole = handle.model, X, net()
    if half:
        model.half()
        x, whole = x.half(), whole.half()
    with torch.set_grad_enabled(graph):
        found = model(x)
    assert handle.detach(device) is model
    assert handle.detach(device) is model
    assert torch.equal(model(x), found)
    assert all(torch.equal(*each) for each in zip(model.parameters(), whole.parameters(), strict=True))
    if graph:
        found.sum().backward()
        whole(x).sum().backward()
        assert all(
            torch.equal(one.grad, other.grad) for one, other in zip(model.parameters(), whole.parameters(), strict=True)
        )


def test_backward_after_detach_finds_the_weights():
    """It was "no slot becomes free"."""
    model, whole = net(), net()
    handle = attach(model, 60_000, "1MB", on="cpu", small=1000)
    found = model(X)
    handle.detach()
    found.sum().backward()
    whole(X).sum().backward()
    assert all(
        torch.equal(one.grad, other.grad) for one, other in zip(model.parameters(), whole.parameters(), strict=True)
    )


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "no graph"])
def test_a_skeleton_after_its_with_block_says_where_its_values_are(graph, folder):
    """It was "Tensor on device meta is not on the expected device"."""
    with read(folder) as handle:
        model = handle.model
        found = model(X) if graph else model(X).detach()
    calls = [lambda: model(X), lambda: model[0].weight.sum(), *([found.sum().backward] if graph else [])]
    for call in calls:
        with pytest.raises(TierAbsentError, match=rf"not attached any more.*{folder}"):
            call()
    if graph:
        with pytest.raises(UsageError, match=r"(?s)detached without its values.*delete outputs"):
            attach(model, 60_000, 20_000, folder, on="cpu", small=1000)
        with pytest.raises(TierAbsentError, match="not attached any more"):
            model(X)
    del calls, call
    del found
    gc.collect()
    assert torch.equal(read_back(model, folder)(X), net()(X))


def test_a_skeleton_whose_weights_changed_keeps_them_after_its_with_block(folder):
    with read(folder) as handle, handle.weights(handle.model[3]), torch.no_grad():
        handle.model[3].weight.fill_(0.5)
    assert (handle.model[3].weight == 0.5).all()
    assert torch.equal(handle.model[4].weight, net()[4].weight)


@pytest.mark.parametrize("problem", ["room", "file", "device"])
def test_a_detach_that_fails_changes_nothing(problem, folder, monkeypatch):
    handle = read(folder)
    model = handle.model
    want = net()(X)
    kind, device, words = {
        "room": (TierCapacityError, None, r'the host has no room.*nothing was changed.*handle\.detach\("meta"\)'),
        "file": (TierChangedError, "cpu", "has changed"),
        "device": (TopropeError, "foo", "no kind of device 'foo'"),
    }[problem]
    before = [each.device for each in model.parameters()]
    path, content = folder / "model.safetensors", (folder / "model.safetensors").read_bytes()
    with monkeypatch.context() as patch:
        if problem == "room":
            patch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=10_000))
        elif problem == "file":
            path.write_bytes(content + b"x")
        with pytest.raises(kind, match=f"(?s){words}"):
            handle.detach(device)
    assert [each.device for each in model.parameters()] == before
    if problem == "file":
        with pytest.raises(TierChangedError):
            model(X)
        return
    assert torch.equal(model(X), want)
    handle.detach()
    assert torch.equal(model(X), want)


def test_a_graph_that_is_alive_holds_weights_where_they_are(folder):
    handle = read(folder)
    found = handle.model(X)
    with pytest.raises(UsageError, match=r'(?s)cannot move from cpu to meta, and nothing.*handle\.detach\("cpu"\)'):
        handle.detach("meta")
    assert torch.equal(handle.model(X), found)
    found = None
    handle.detach("meta")
    assert all(each.is_meta for each in handle.model.parameters())
    assert torch.equal(read_back(handle.model, folder)(X), net()(X))


def test_close_leaves_weights_whose_use_is_an_error():
    model = net()
    handle = attach(model, 60_000, "1MB", on="cpu", small=1000)
    handle.close()
    with pytest.raises(TierAbsentError, match=r"closed without giving.*"):
        model(X)


CARD = """
import json, tempfile, torch
from torch import nn
from safetensors.torch import save_file
from toprope.tiers import attach, skeleton
def build():
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(64, 64) for _ in range(6)], nn.BatchNorm1d(64)).eval()
folder = tempfile.mkdtemp()
save_file(build().state_dict(), folder + "/model.safetensors")
x = torch.linspace(-1, 1, 192).view(3, 64)
told = {}
for kind in ("memory", "skeleton"):
    for asked in (None, "cpu", "npu"):
        model = build()
        if kind == "skeleton":
            with skeleton():
                model = build()
        handle = attach(model, "60kB", "1MB", folder, small=1000, on="npu")
        with torch.no_grad():
            model(x.npu())
            handle.detach(asked)
            where = "cpu" if asked is None else asked
            close = torch.allclose(model(x.to(where)).cpu(), build()(x), atol=1e-4)
        devices = sorted({each.device.type for each in (*model.parameters(), *model.buffers())})
        told[f"{kind} {asked}"] = [close, devices]
print("told:" + json.dumps(told))
"""


@pytest.mark.slow
@pytest.mark.native
def test_buffers_go_back_from_a_card_with_the_weights(tmp_path):
    """They stayed on the card, and the model had tensors on two devices."""
    program = tmp_path / "program.py"
    program.write_text(CARD)
    done = subprocess.run(
        [sys.executable, "-m", "toprope", "run", "--chip", "910B3", "--hbm", "64MB", str(program)],
        capture_output=True, text=True, timeout=300, env=environment() | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("told:"))[5:])
    assert told == {
        f"{kind} {asked}": [True, ["npu" if asked == "npu" else "cpu"]]
        for kind in ("memory", "skeleton")
        for asked in (None, "cpu", "npu")
    }


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((3,), "attach takes a torch.nn.Module, and this is of type int"),
        ((None,), "of type NoneType"),
        (("gpt2",), "of type str"),
        ((nn.Linear,), "the class Linear"),
    ],
)
def test_attach_refuses_what_is_no_module(given, words):
    """It was "AttributeError: 'int' object has no attribute 'named_modules'"."""
    with pytest.raises(UsageError, match=words):
        attach(*given)


@pytest.mark.parametrize("option", [{"slots": "2"}, {"threads": 0}, {"limit": 0}, {"disk": 3}], ids=str)
def test_attach_names_an_option_of_another_type(option):
    with pytest.raises(UsageError, match=next(iter(option))):
        attach(net(), **{"device": "60kB", "host": "1MB", "on": "cpu", **option})


def test_a_handle_takes_optimizers_alone():
    with (
        attach(net(), 60_000, "1MB", on="cpu", small=1000) as handle,
        pytest.raises(UsageError, match="this int is no"),
    ):
        handle.optimizer(3)

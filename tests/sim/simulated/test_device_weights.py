"""Weights on the simulated card: the bytes of the file, and hardly any memory of the host.

Holds device/weights.py against the bytes of the file, and the host's memory. tests/sim/test_simulated.py runs this
module in a process with simulated cards.
"""

import collections
import pathlib

import pytest
import torch
from safetensors.torch import save_file

from toprope import device

SIM = "910B3x2,hbm=2GiB"
MIB = 2**20
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int8, torch.uint8, torch.bool]
SPELLINGS = ["npu:1", "NPU:1", " npu:1 ", 1, torch.device("npu:1"), torch.device("npu", 1)]


def kibibytes(name: str) -> int:
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1])
    raise KeyError(name)


@pytest.fixture(params=["safetensors", "pt"])
def save(request, tmp_path):
    def write(tensors):
        path = tmp_path / f"w.{request.param}"
        save_file(tensors, path) if request.param == "safetensors" else torch.save(tensors, path)
        return path

    return write


@pytest.mark.parametrize("spelling", SPELLINGS, ids=repr)
def test_every_spelling_of_a_device(save, spelling):
    path = save({"w": torch.arange(5.0)})
    found = device.load(path, spelling)["w"]
    assert found.device == torch.device("npu:1")
    assert found.tolist() == [0, 1, 2, 3, 4]


def test_without_a_device_the_one_in_force_is_meant(save):
    path = save({"w": torch.ones(2)})
    assert device.load(path)["w"].device == torch.device("npu:0")
    with device.use("npu:1"):
        assert device.load(path)["w"].device == torch.device("npu:1")
    assert device.load(path, "cpu")["w"].device == torch.device("cpu")


def test_all_kinds_of_tensors_come_back_bit_for_bit(save):
    made = {f"{dtype} {shape}": torch.randint(0, 2, shape).to(dtype)
            for dtype in DTYPES for shape in ((), (0,), (3,), (2, 3), (70_001,))}  # fmt: skip
    found = device.load(save(made), "npu")
    assert found.keys() == made.keys()
    for name, tensor in made.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        assert torch.equal(found[name].cpu(), tensor), name


def test_pieces_meet_without_a_gap(save, monkeypatch):
    monkeypatch.setattr("toprope.device.weights.PIECE", 5 * 4096)
    made = {f"w{size}": torch.randn(size) for size in (1, 5119, 5120, 5121, 20_000)}
    for dtype in (None, torch.bfloat16):
        found = device.load(save(made), "npu", dtype=dtype)
        assert all(torch.equal(found[name].cpu(), made[name].to(dtype or torch.float32)) for name in made)


def test_what_is_shared_in_a_checkpoint_is_shared_on_the_card(tmp_path):
    weight = torch.arange(12.0).reshape(3, 4)
    saved = collections.OrderedDict(
        a=weight,
        tied=weight,
        turned=weight.T,
        part=weight[1, 1:],
        other=torch.ones(2),
        parameter=torch.nn.Parameter(weight),
    )
    torch.save(saved, tmp_path / "c.pt")
    found = device.load(tmp_path / "c.pt", "npu:1")
    before = device.get("npu:1").memory_allocated()
    assert all(torch.equal(found[name].detach().cpu(), saved[name].detach()) for name in saved)
    found["a"][1, 2] = 99
    assert [found["tied"][1, 2].item(), found["turned"][2, 1].item(), found["part"][1].item()] == [99] * 3
    assert found["parameter"].requires_grad
    assert isinstance(found["parameter"], torch.nn.Parameter)
    assert found["parameter"].untyped_storage().data_ptr() == found["a"].untyped_storage().data_ptr()
    assert device.get("npu:1").memory_allocated() == before


def test_an_old_checkpoint(tmp_path):
    torch.save(
        {"w": torch.arange(9000.0), "v": [torch.ones(2)]}, tmp_path / "c.pt", _use_new_zipfile_serialization=False
    )
    found = device.load(tmp_path / "c.pt", "npu")
    assert torch.equal(found["w"].cpu(), torch.arange(9000.0))
    assert found["v"][0].device.type == "npu"


def test_weights_fit_a_model_on_the_card(save):
    model = torch.nn.Linear(300, 200)
    found = device.load(save({name: each.detach() for name, each in model.state_dict().items()}), "npu:1")
    other = torch.nn.Linear(300, 200, device="npu:1")
    other.load_state_dict(found)
    x = torch.randn(4, 300)
    assert torch.allclose(other(x.to("npu:1")).cpu(), model(x), atol=1e-5)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_the_host_needs_hardly_any_memory(save, dtype):
    """A file of 384 MiB, one of its tensors of 256 MiB; the card's own bytes are in this process too."""
    path = save({"large": torch.ones(64 * MIB), "small": torch.ones(16 * MIB), "other": torch.ones(16 * MIB)})
    card = device.get("npu:0")
    card.load(save_small(path.parent), dtype=dtype)  # what the first load brings along is not this one's
    card.synchronize()
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    before = kibibytes("VmRSS")
    found = card.load(path, dtype=dtype)
    peak, after = kibibytes("VmHWM"), kibibytes("VmRSS")
    bytes_of_card = sum(each.nbytes for each in found.values()) // 1024
    assert bytes_of_card == (384 if dtype is None else 192) * 1024
    assert peak - before - bytes_of_card <= 64 * 1024
    assert after - before - bytes_of_card <= 16 * 1024


def save_small(folder: pathlib.Path) -> pathlib.Path:
    save_file({"w": torch.ones(4)}, folder / "small.safetensors")
    return folder / "small.safetensors"

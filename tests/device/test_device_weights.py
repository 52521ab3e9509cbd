"""Files of weights on the CPU; tests/sim/simulated/test_device_weights.py has them on a card."""

import collections
import pathlib

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from toprope import device
from toprope.errors import DeviceNameError, UsageError, WeightsError

DTYPES = [
    torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn,
]  # fmt: skip
SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Bit for bit."""
    return one.dtype == other.dtype and one.shape == other.shape and (
        one.contiguous().view(-1).view(torch.uint8).tolist() == other.contiguous().view(-1).view(torch.uint8).tolist()
    )  # fmt: skip


@given(
    tensors=st.dictionaries(
        st.text(min_size=1).filter("__metadata__".__ne__), st.tuples(SHAPES, st.sampled_from(DTYPES)), min_size=1
    )
)
def test_safetensors_come_back_bit_for_bit(tmp_path_factory, tensors):
    path = tmp_path_factory.mktemp("weights") / "w.safetensors"
    made = {name: torch.randint(0, 2, shape).to(dtype) for name, (shape, dtype) in tensors.items()}
    save_file(made, path)
    found = device.load(path, "cpu")
    assert found.keys() == made.keys()
    assert all(same(found[name], tensor) for name, tensor in made.items())
    assert {each.device for each in found.values()} == {torch.device("cpu")}


@pytest.mark.parametrize(
    "spelling", [None, "cpu", " CPU ", "cpu:0", "auto", 0, torch.device("cpu"), torch.device("cpu", 0)]
)
def test_every_spelling_of_a_device(tmp_path, spelling):
    save_file({"w": torch.ones(3)}, tmp_path / "w.safetensors")
    assert device.load(str(tmp_path / "w.safetensors"), spelling)["w"].device == torch.device("cpu")
    assert device.load(tmp_path / "w.safetensors", device.get(spelling))["w"].tolist() == [1, 1, 1]


def test_an_unknown_device_is_an_error_before_the_file_is_looked_at(tmp_path):
    with pytest.raises(DeviceNameError):
        device.load(tmp_path / "not there", "gcu:0")


def test_what_is_written_to_a_tensor_does_not_reach_the_file(tmp_path):
    path = tmp_path / "w.safetensors"
    save_file({"w": torch.ones(4096)}, path)
    device.load(path, "cpu")["w"].zero_()
    assert device.load(path, "cpu")["w"].sum() == 4096


def test_only_floating_points_change_their_type(tmp_path):
    path = tmp_path / "w.safetensors"
    save_file(
        {"f": torch.ones(3), "h": torch.ones(3, dtype=torch.float16), "i": torch.ones(3, dtype=torch.int64)}, path
    )
    found = device.load(path, "cpu", dtype=torch.bfloat16)
    assert {name: each.dtype for name, each in found.items()} == {
        "f": torch.bfloat16, "h": torch.bfloat16, "i": torch.int64
    }  # fmt: skip
    with pytest.raises(WeightsError, match="is not a floating-point type"):
        device.load(path, "cpu", dtype=torch.int8)


def test_the_name_of_a_dtype_ended_in_an_attribute_error(tmp_path):
    with pytest.raises(UsageError, match=r"'bfloat16' is no torch.dtype"):
        device.load(tmp_path / "w.safetensors", "cpu", dtype="bfloat16")


@pytest.mark.parametrize("new_format", [True, False])
def test_a_checkpoint_keeps_its_shape_and_what_is_shared(tmp_path, new_format):
    weight = torch.arange(12.0).reshape(3, 4)
    saved = {
        "model": collections.OrderedDict(a=weight, tied=weight, turned=weight.T, part=weight[1]),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "steps": [1, 2.5, "three", None, (torch.ones(1), True)],
    }
    path = tmp_path / "c.pt"
    torch.save(saved, path, _use_new_zipfile_serialization=new_format)
    for dtype in (None, torch.float64):
        found = device.load(path, "cpu", dtype=dtype)
        model = found["model"]
        assert type(model) is collections.OrderedDict
        assert torch.equal(model["turned"], weight.T.to(dtype or torch.float32))
        model["a"][1, 0] = 99
        assert [model["tied"][1, 0], model["turned"][0, 1], model["part"][0]] == [99, 99, 99]
        assert isinstance(found["parameter"], torch.nn.Parameter)
        assert found["parameter"].requires_grad
        assert found["steps"][:4] == [1, 2.5, "three", None]
        assert type(found["steps"][4]) is tuple
        assert found["steps"][4][0].dtype == (dtype or torch.float32)


def test_a_state_dict_fits_its_model(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    torch.save(model.state_dict(), tmp_path / "c.pt")
    found = device.load(tmp_path / "c.pt", "cpu", dtype=torch.float64)
    assert found._metadata == model.state_dict()._metadata
    model.double().load_state_dict(found)


class Custom:
    """Loading this would run code."""


def damaged(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    save_file({"w": torch.ones(999)}, folder / "whole.safetensors")
    torch.save({"w": torch.ones(999)}, folder / "whole.pt")
    torch.save({"w": torch.ones(999)}, folder / "old.pt", _use_new_zipfile_serialization=False)
    numpy.savez(folder / "arrays.npz", a=numpy.ones(3))
    texts = {
        "empty": b"",
        "pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12345\n",
        "short.safetensors": (folder / "whole.safetensors").read_bytes()[:-7],
        "short.pt": (folder / "whole.pt").read_bytes()[:-500],
        "short_old.pt": (folder / "old.pt").read_bytes()[:-500],
        "text": b"hello, this is no file of weights",
        "header": (8).to_bytes(8, "little") + b'{"a": 1}',
        "huge header": b"\xff" * 7 + b"\x7f{",
    }
    for name, text in texts.items():
        (folder / name).write_bytes(text)
    return {path.name: path for path in folder.iterdir() if not path.name.startswith(("whole", "old"))}


def test_a_file_that_holds_no_weights_says_so(tmp_path):
    for name, path in damaged(tmp_path).items():
        with pytest.raises(WeightsError) as caught:
            device.load(path, "cpu")
        assert str(path) in caught.value.what, name
        assert "downloaded whole" in caught.value.do or "weights_only" in caught.value.do, name


def test_objects_next_to_the_weights_are_refused(tmp_path):
    torch.save({"w": torch.ones(3), "custom": Custom()}, tmp_path / "c.pt")
    with pytest.raises(WeightsError, match="has more in it than weights") as caught:
        device.load(tmp_path / "c.pt", "cpu")
    assert "Custom" in str(caught.value)


def test_a_missing_file_is_pythons_own_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        device.load(tmp_path / "not there", "cpu")
    with pytest.raises(IsADirectoryError):
        device.load(tmp_path, "cpu")


@pytest.mark.parametrize("size", [0x80, 0x180, 0x280])
def test_a_header_whose_size_looks_like_a_pickle(tmp_path, size):
    """The first byte of an old checkpoint is 0x80, and so is the first byte of some safetensors files."""
    header = b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    path = tmp_path / "w.safetensors"
    path.write_bytes(size.to_bytes(8, "little") + header.ljust(size) + torch.ones(2).numpy().tobytes())
    assert device.load(path, "cpu")["w"].tolist() == [1, 1]

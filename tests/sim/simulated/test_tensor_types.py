"""torch.npu.FloatTensor and its kin.

Holds sim/npu/tensor_types.py and storage_types.py against torch_npu's classes. tests/sim/test_simulated.py runs this
module in a process with simulated cards.
"""

import pickle

import pytest
import torch

from toprope.sim.npu import tensor_types

npu = torch.npu
TYPES = {
    "BFloat16Tensor": torch.bfloat16, "BoolTensor": torch.bool, "ByteTensor": torch.uint8, "CharTensor": torch.int8,
    "DoubleTensor": torch.float64, "FloatTensor": torch.float32, "HalfTensor": torch.float16,
    "IntTensor": torch.int32, "LongTensor": torch.int64, "ShortTensor": torch.int16,
}  # fmt: skip


@pytest.fixture(autouse=True)
def warned() -> None:
    """The warning that they are an old way is given once; here it was."""
    tensor_types._warn_once.cache_clear()
    with pytest.warns(UserWarning, match="old way to make tensors"):
        npu.FloatTensor()


@pytest.mark.parametrize(("name", "dtype"), TYPES.items())
def test_a_type_is_as_torchs_own(name: str, dtype: torch.dtype) -> None:
    kind, host = getattr(npu, name), getattr(torch, name)
    tensor = torch.ones(2, dtype=dtype, device="npu")
    assert repr(kind) == f"<class 'torch.npu.{name}'>"
    assert (kind.__name__, kind.__module__, torch.typename(kind)) == (name, "torch.npu", f"torch.npu.{name}")
    assert (kind.dtype, kind.layout, kind.is_npu, kind.is_sparse) == (dtype, torch.strided, True, False)
    assert tensor.type() == f"torch.npu.{name}"
    assert isinstance(tensor, kind)
    assert not isinstance(tensor.cpu(), kind)
    assert not isinstance(tensor, host)
    assert not isinstance(3, kind)
    assert sum(isinstance(tensor, getattr(npu, each)) for each in TYPES) == 1
    assert kind in torch._tensor_classes
    assert pickle.loads(pickle.dumps(kind)) is kind
    assert kind.add is torch.Tensor.add
    with pytest.raises(AttributeError):
        kind.no_such_method  # noqa: B018 - asking is what raises


@pytest.mark.parametrize(("name", "dtype"), TYPES.items())
def test_tensors_are_moved_to_a_type(name: str, dtype: torch.dtype) -> None:
    for given in (getattr(npu, name), f"torch.npu.{name}"):
        moved = torch.tensor([0.0, 1.0]).type(given)
        assert (moved.device, moved.dtype) == (torch.device("npu:0"), dtype)
        assert moved.tolist() == [0, 1]


@pytest.mark.parametrize(("name", "dtype"), TYPES.items())
def test_a_type_makes_tensors(name: str, dtype: torch.dtype) -> None:
    kind = getattr(npu, name)
    assert kind().shape == (0,)
    assert kind(2, 3).shape == kind(torch.Size([2, 3])).shape == (2, 3)
    made = kind([0, 1])
    assert (made.tolist(), made.dtype, made.device.type) == ([0, 1], dtype, "npu")
    assert kind(made).data_ptr() == made.data_ptr()
    assert kind(2, device="npu").shape == (2,)
    with pytest.raises(RuntimeError, match=r"(?i)device type"):
        kind(2, device="cpu")


def test_they_go_to_the_current_card() -> None:
    with npu.device(1):
        assert npu.IntTensor([1]).device == torch.device("npu:1")
    assert torch.device("npu:0") == npu.IntTensor([1]).device


@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type")
def test_they_are_no_default_as_with_torch_npu() -> None:
    with pytest.raises(TypeError, match="invalid type object"):
        torch.set_default_tensor_type(npu.FloatTensor)


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize(("name", "dtype"), {name.replace("Tensor", "Storage"): TYPES[name] for name in TYPES}.items())
def test_a_storage_type_is_as_torchs_own(name: str, dtype: torch.dtype) -> None:
    kind, host = getattr(npu, name), getattr(torch, name)
    storage = torch.ones(3, dtype=dtype, device="npu").storage()
    assert repr(kind) == f"<class 'torch.npu.{name}'>"
    assert kind.dtype == dtype
    assert kind in torch._storage_classes
    assert isinstance(storage, kind)
    assert not isinstance(storage, host)
    assert not isinstance(storage.cpu(), kind)
    assert not isinstance(torch.ones(3, dtype=dtype, device="npu"), kind)
    made = kind(4)
    assert (made.size(), made.device.type, made.dtype) == (4, "npu", dtype)
    made.fill_(1)
    assert made.tolist() == [1] * 4
    assert kind([0, 1]).tolist() == [0, 1]
    assert isinstance(kind(wrap_storage=torch.UntypedStorage(8, device="npu")), kind)


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_a_storage_changes_its_dtype_and_its_card() -> None:
    storage = torch.arange(4.0).storage().npu()
    assert isinstance(storage, npu.FloatStorage)
    assert isinstance(storage.half(), npu.HalfStorage)
    assert isinstance(storage.cpu(), torch.FloatStorage)
    with npu.device(1):
        assert npu.IntStorage(1).device == torch.device("npu:1")


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_a_storage_is_not_made_of_a_buffer() -> None:
    with pytest.raises(RuntimeError, match="from_buffer: Not available for NPU storage"):
        npu.ByteStorage.from_buffer(bytearray(2))

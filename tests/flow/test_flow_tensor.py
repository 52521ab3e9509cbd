"""Tensors of the dataflow API (`flow.tensor`), and the register of message types (`flow.registry`)."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from toprope import flow as df
from toprope.flow.data_type import DTYPES
from toprope.flow.registry import MsgTypeRegister, unwrap, wrap
from toprope.flow.stage.spec import EMPTY, PICKLED, RAW, TENSOR, TORCH

NUMPY = [each for each in DTYPES if each.numpy]


@given(arrays.arrays(st.sampled_from([each.numpy for each in NUMPY]), arrays.array_shapes(min_dims=0, max_side=4)))
def test_a_tensor_is_a_copy_with_its_dtype_and_shape(array):
    tensor = df.Tensor(array)
    np.testing.assert_array_equal(tensor.numpy(), array)
    assert tensor.get_shape() == list(array.shape)
    assert tensor.get_data_type() == array.dtype.type
    assert tensor.tensor_desc.dtype.numpy == array.dtype.name
    assert (tensor.get_element_cnt(), tensor.get_data_size()) == (array.size, array.nbytes)
    assert not np.shares_memory(tensor.numpy(), array)
    assert np.shares_memory(tensor.numpy(), tensor.numpy())
    assert not np.shares_memory(tensor.numpy(copy=True), tensor.numpy())
    again = df.Tensor(tensor, tensor_desc=tensor.tensor_desc)
    assert not np.shares_memory(again.numpy(), tensor.numpy())
    np.testing.assert_array_equal(again.numpy(), array)


@pytest.mark.parametrize(
    ("data", "desc", "code"),
    [
        ([1.0, 2.0], df.TensorDesc(df.DT_DOUBLE, [3]), 145021),
        ([1.0, 2.0], df.TensorDesc(df.DT_DOUBLE, [2, 1]), 145021),
        ([1j], None, 145022),
        ({}, None, 145022),
        ([object()], None, 145022),
        ([[1], [1, 2]], None, 145022),
        ("ü", None, 145022),
        (torch.ones(1, requires_grad=True), None, 145022),
        (np.ones((3, 3))[:, 1], None, 145000),
        ([1.0], df.TensorDesc(df.DT_BF16, [1]), 145022),
        ([1.0], "float", 145000),
    ],
)
def test_what_is_no_tensor_is_refused_with_its_code(data, desc, code):
    with pytest.raises(df.DfException) as error:
        df.Tensor(data, tensor_desc=desc)
    assert error.value.error_code == code
    assert str(error.value).startswith(f"DfException:{code}:")


def test_another_dtype_is_cast_with_a_warning_and_a_failing_cast_is_a_value_error():
    with pytest.warns(UserWarning, match="DT_INT64 is cast to DT_FLOAT"):
        tensor = df.Tensor([1, 2], tensor_desc=df.TensorDesc(df.DT_FLOAT, [-1]))
    assert tensor.numpy().dtype == np.float32
    with pytest.warns(UserWarning, match="is cast"), pytest.raises(ValueError, match="invalid literal"):
        df.Tensor(["a"], tensor_desc=df.TensorDesc(df.DT_INT32, [1]))


def test_texts_can_only_be_copied():
    tensor = df.Tensor(["ab", "c"])
    assert tensor.get_data_type() == np.bytes_
    assert tensor.tensor_desc.dtype == df.DT_STRING
    assert tensor.numpy(copy=True).tolist() == [b"ab", b"c"]
    with pytest.raises(df.DfException):
        tensor.numpy()


def test_a_tensor_can_be_reshaped():
    tensor = df.Tensor(range(6))
    assert tensor.reshape([2, 3]) == 0
    assert tensor.get_shape() == [2, 3]
    assert tensor.reshape([3]) == 164000
    assert tensor.get_shape() == [2, 3]


@given(
    st.lists(st.integers(0, 5), max_size=3),
    st.sampled_from(NUMPY),
    st.sampled_from([32, 64, 128, 256, 512, 1024]),
    st.booleans(),
)
def test_allocated_memory_is_aligned(shape, dtype, align, by_numpy):
    tensor = df.alloc_tensor(shape, np.dtype(dtype.numpy) if by_numpy else dtype, align)
    array = tensor.numpy()
    assert array.shape == tuple(shape)
    assert array.dtype.name == dtype.numpy
    assert not array.any()
    assert not array.size or array.ctypes.data % align == 0
    array.fill(1)


def test_what_cannot_be_allocated_is_refused():
    for dtype in (None, "no such", complex, object()):
        with pytest.raises(TypeError, match="dtype must be"):
            df.alloc_tensor([1], dtype)
    for shape, dtype, align, code in (
        ([1], df.DT_FLOAT, 48, 145000), ([-1], df.DT_FLOAT, 64, 145021), (3, df.DT_FLOAT, 64, 145021),
        ([1], df.DT_STRING, 64, 145022),
    ):  # fmt: skip
        with pytest.raises(df.DfException) as error:
            df.alloc_tensor(shape, dtype, align)
        assert error.value.error_code == code


class Point:
    def __init__(self, x):
        self.x = x


def to_bytes(point):
    return str(point.x).encode()


def from_bytes(raw):
    return Point(int(bytes(raw)))


def test_values_become_messages_of_their_types_and_back():
    tensor = df.Tensor([1, 2])
    for value, kind in ((None, EMPTY), (tensor, TENSOR), (torch.ones(2), TORCH), ("s", PICKLED), (np.ones(2), PICKLED)):
        assert wrap(value)[0] == kind
    assert unwrap(*wrap(None)) is None
    assert unwrap(*wrap(tensor)).numpy().tolist() == [1, 2]
    assert unwrap(*wrap("s")) == "s"
    assert unwrap(RAW, b"ab") == memoryview(b"ab")
    with pytest.raises(df.DfException):
        unwrap(2000, b"")


def test_the_register_keeps_one_class_for_one_number():
    register = MsgTypeRegister()
    assert register.pickled() == b""
    register.register(1026, Point, to_bytes, from_bytes, len)
    register.register(1026, Point, to_bytes, from_bytes)  # the same again
    assert register.registered(1026)
    assert register.registered(65535)
    assert not register.registered(1027)
    assert register.get_msg_type(Point) == 1026
    assert register.get_msg_type(int) is None
    assert register.get_serialize_func(1026) is to_bytes
    assert register.get_deserialize_func(1026) is from_bytes
    assert register.get_size_func(1026) is None
    assert register.get_deserialize_func(65535)(register.get_serialize_func(65535)({"a": 1})) == {"a": 1}
    for number, cls in ((1026, int), (1027, Point)):
        with pytest.raises(df.DfException):
            register.register(number, cls, to_bytes, from_bytes)
    for arguments in (("1026", Point, to_bytes, from_bytes), (1028, "x", to_bytes, from_bytes), (1028, int, 1, 2)):
        with pytest.raises(TypeError):
            register.register(*arguments)


def test_a_pickle_is_read_from_a_file(tmp_path):
    import pickle

    (tmp_path / "x.pkl").write_bytes(pickle.dumps([1]))
    assert df.msg_type_register.deserialize_from_file("x.pkl", str(tmp_path)) == [1]

"""The metadata of messages (`FlowInfo`), and the dtypes and descriptions of tensors."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toprope import flow as df
from toprope.flow.convert import any_message, head_of, info_of
from toprope.flow.stage.spec import Head


@given(st.binary(min_size=1, max_size=64), st.integers(0, 63))
def test_user_data_is_read_as_it_was_written(data, offset):
    info = df.FlowInfo()
    if len(data) + offset > 64:
        with pytest.raises(df.DfException) as error:
            info.set_user_data(data, offset)
        assert error.value.error_code == 145000
        return
    info.set_user_data(bytearray(data), offset)
    assert info.get_user_data(len(data), offset) == data
    assert info.data_size == offset + len(data)
    assert len(info.user_data) == 64


def test_sizes_that_cannot_be_are_refused():
    info = df.FlowInfo()
    for size, offset in ((0, 0), (1, 64), (65, 0), (5, 60), (-1, 0), (1, -1)):
        with pytest.raises(df.DfException):
            info.get_user_data(size, offset)
    with pytest.raises(df.DfException):
        info.set_user_data(bytearray(65))
    info.set_user_data(b"abc", 60)
    assert info.data_size == 63


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 3), st.integers(0, 2**64 - 1), st.binary())
def test_a_message_brings_it_whole(start, end, flags, transaction, data):
    info = df.FlowInfo(start, end, flags, transaction)
    if 0 < len(data) <= 64:
        info.set_user_data(data)
    found = info_of(head_of(info))
    assert repr(found) == repr(info)
    assert found.user_data == info.user_data
    assert found.data_size == info.data_size


def test_flags_can_be_combined():
    both = df.FlowFlag.DATA_FLOW_FLAG_EOS | df.FlowFlag.DATA_FLOW_FLAG_SEG
    assert df.FlowInfo(flow_flags=both).flow_flags == 3


def test_a_description_takes_ints_only_and_negative_ones():
    import numpy

    desc = df.TensorDesc(df.DT_FLOAT, (1, -1))
    assert repr(desc) == "TensorDesc(dtype=DT_FLOAT, shape=[1, -1])"
    assert desc == df.TensorDesc(df.DT_FLOAT, [1, -1])
    assert desc != df.TensorDesc(df.DT_FLOAT16, [1, -1])
    for dtype, shape, code in (
        (0, [1], 145022), (df.DT_FLOAT, 1, 145021), (df.DT_FLOAT, [numpy.int64(1)], 145021),
        (df.DT_FLOAT, [1.0], 145021),
    ):  # fmt: skip
        with pytest.raises(df.DfException) as error:
            df.TensorDesc(dtype, shape)
        assert error.value.error_code == code


@pytest.mark.parametrize(("shape", "dtype"), [((3, 3), np.float32), ((2, 3, 1), np.float32), ((2, 3), np.float64)])
def test_a_tensor_of_another_shape_or_type_than_the_inputs_schema_is_refused(shape, dtype):
    data = df.FlowData(schema=df.TensorDesc(df.DT_FLOAT, [-1, 3] if shape[0] != 3 else [2, 3]))
    with pytest.raises(df.DfException) as error:
        any_message(data, df.Tensor(np.zeros(shape, dtype)), Head(1))
    assert error.value.error_code == 145000
    assert any_message(data, df.Tensor(np.zeros((2, 3), np.float32)), Head(1)).payload.shape == (2, 3)

"""torch_npu's operators on the simulated card: as on the CPU, and with the shapes that a compiler assumes."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

import toprope.compat.torch_npu as torch_npu
from npu_samples import every_sample

SIM = "910B3"
SAMPLES = every_sample()
# Those about storage and formats have tests of their own; a group of processes has them too.
WITHOUT = {
    "copy_memory_", "empty_with_format", "get_npu_format", "get_storage_size", "npu_change_data_ptr", "npu_dtype_cast",
    "npu_format_cast", "npu_format_cast.Tensor", "npu_format_cast_", "npu_format_cast_.acl_format",
}  # fmt: skip
# It has no tensor to lie on the card, and a test of its own.
WITHOUT |= {"npu_dropout_gen_mask"}
# Operators of the Ascend 950 alone.
WITHOUT |= {
    "npu_fused_matmul", "npu_mhc_post", "npu_mhc_post_backward", "npu_mhc_pre", "npu_mhc_pre_backward",
    "npu_mhc_sinkhorn", "npu_mhc_sinkhorn_backward",
}  # fmt: skip
# Their results are drawn, or hold values that are left as they are.
ONLY_SHAPES: set[str] = set()
ONLY_SHAPES |= {
    "_npu_dropout", "_dropout_with_byte_mask", "dropout_with_byte_mask",
    "npu_dropout_with_add_softmax",
}  # fmt: skip


def moved(tree, to):
    return tree_map(lambda leaf: leaf.clone().to(to) if isinstance(leaf, torch.Tensor) else leaf, tree)


def called(name, args, kwargs):
    packet, _, overload = name.partition(".")
    made = torch_npu.OPERATORS[name]
    operator = getattr(getattr(getattr(torch.ops, made.namespace), packet), overload or "default")
    result = operator(*args, **kwargs)
    return tree_leaves((result, args, kwargs) if operator._schema.is_mutable else result)


def test_every_operator_has_a_sample():
    assert {*torch_npu.OPERATORS} - WITHOUT == {*SAMPLES}


@pytest.mark.parametrize("name", SAMPLES)
def test_as_on_the_cpu(name):
    expected = called(name, *moved(SAMPLES[name], "cpu"))
    found = called(name, *moved(SAMPLES[name], "npu"))
    assert len(found) == len(expected)
    for got, want in zip(found, expected, strict=True):
        if not isinstance(want, torch.Tensor):
            assert got == want
            continue
        assert (got.device.type, got.shape, got.dtype) == ("npu", want.shape, want.dtype)
        if name not in ONLY_SHAPES:
            torch.testing.assert_close(got.cpu(), want, equal_nan=True)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_compiler_sees_the_same_shapes(name):
    expected = called(name, *moved(SAMPLES[name], "npu"))
    real = moved(SAMPLES[name], "npu")
    with FakeTensorMode() as mode:
        fakes = tree_map(lambda leaf: mode.from_tensor(leaf) if isinstance(leaf, torch.Tensor) else leaf, real)
        found = called(name, *fakes)
    for got, want in zip(found, expected, strict=True):
        if isinstance(want, torch.Tensor):
            assert (got.device, got.shape, got.dtype) == (want.device, want.shape, want.dtype)

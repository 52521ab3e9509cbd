"""Work of operators (operations and bytes), computed by hand.

Holds src/toprope/estimate/cost/costs.py and its table costs.toml.
"""

import pytest

from toprope.estimate.cost.costs import KINDS, cost_of
from toprope.estimate.record.calls import OperatorCall, TensorShape, item_bits


def call(name, *tensors, operations=0):
    return OperatorCall(f"aten::{name}", tuple(TensorShape(*each) for each in tensors), operations)


def test_a_product_of_matrices():
    cost = cost_of(call("mm", ("float16", (8, 32)), ("float16", (32, 16)), ("float16", (8, 16), "result")))
    assert (cost.kind, cost.operations, cost.dtype) == ("matmul", 2 * 8 * 32 * 16, "float16")
    assert (cost.rows, cost.columns, cost.depth, cost.products) == (8, 16, 32, 1)
    assert cost.bytes == 2 * (8 * 32 + 32 * 16 + 8 * 16)


def test_what_is_added_to_is_no_factor():
    three = (("float32", (16,)), ("float32", (8, 32)), ("float32", (32, 16)))
    assert cost_of(call("addmm", *three, ("float32", (8, 16), "result"))).depth == 32
    in_place = call("addmm_", ("float32", (8, 16), "written"), *three[1:])
    assert cost_of(in_place).operations == 2 * 8 * 32 * 16


def test_products_of_a_batch():
    cost = cost_of(call("bmm", ("float16", (4, 8, 32)), ("float16", (4, 32, 16)), ("float16", (4, 8, 16), "result")))
    assert (cost.products, cost.rows, cost.operations) == (4, 8, 4 * 2 * 8 * 32 * 16)


def test_a_vector_times_a_matrix():
    cost = cost_of(call("mv", ("float32", (8, 32)), ("float32", (32,)), ("float32", (8,), "result")))
    assert (cost.rows, cost.columns, cost.depth) == (8, 1, 32)


def test_bytes_of_an_operator_in_place_are_read_and_written():
    plain = call("add", ("float32", (10,)), ("float32", (10,)), ("float32", (10,), "result"))
    assert (cost_of(plain).kind, cost_of(plain).bytes) == ("elementwise", 120)
    assert cost_of(call("add_", ("float32", (10,), "written"), ("float32", (10,)))).bytes == 120


def test_an_expanded_operand_takes_what_it_takes_in_memory():
    wide = TensorShape("float32", (1000, 10), "read", 40)
    assert cost_of(OperatorCall("aten::neg", (wide, TensorShape("float32", (1000, 10), "result")))).bytes == 40040


def test_a_table_is_not_read_whole():
    table, indices = ("float16", (32000, 64)), ("int64", (8,))
    cost = cost_of(call("embedding", table, indices, ("float16", (8, 64), "result")))
    assert (cost.kind, cost.bytes, cost.elements) == ("indexing", 2 * 8 * 64 * 2 + 64, 8 * 64)


def test_filling_reads_nothing():
    assert cost_of(call("fill_", ("float32", (10,), "written"))).bytes == 40


def test_strided_operands_are_made_contiguous_first():
    turned = TensorShape("float16", (64, 32), "read", strided=True)
    cost = cost_of(OperatorCall("aten::relu", (turned, TensorShape("float16", (64, 32), "result"))))
    assert (cost.rearranged, cost.row_bytes) == (64 * 32, 64)


def test_lists_of_tensors_are_one_kernel():
    many = OperatorCall("aten::_foreach_add_", (TensorShape("float32", (10,), "written"),), more_written=400)
    assert (cost_of(many).kind, cost_of(many).bytes) == ("elementwise", 2 * 40 + 2 * 400)


def test_what_no_rule_knows_is_other():
    cost = cost_of(call("a_new_operator", ("float32", (10,)), ("float32", (10,), "result")))
    assert (cost.kind, cost.bytes) == ("other", 80)
    assert cost_of(OperatorCall("npu::without_tensors", ())).kind == "other"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("native_layer_norm", "normalisation"), ("npu_rms_norm", "normalisation"), ("_softmax", "softmax"),
        ("npu_fusion_attention", "attention"), ("_fused_adamw_", "optimizer"), ("sum", "reduction"),
        ("copy_", "copy"), ("topk", "sorting"), ("convolution", "convolution"), ("gelu_backward", "elementwise"),
    ],
)  # fmt: skip
def test_kinds(name, kind):
    found = cost_of(call(name, ("float16", (4, 4)), ("float16", (4, 4), "result"))).kind
    assert found == kind
    assert found in KINDS


@pytest.mark.parametrize(("dtype", "bits"), [("bfloat16", 16), ("int4", 4), ("float8_e4m3fn", 8), ("bool", 8)])
def test_bits_of_elements(dtype, bits):
    assert item_bits(dtype) == bits


def test_writing_one_row_does_not_cost_the_table():
    table, one = TensorShape("float16", (4096, 4096), "written"), TensorShape("float16", (1, 4096))
    cost = cost_of(OperatorCall("aten::index_put_", (table, TensorShape("int64", (1,)), one)))
    assert (cost.elements, cost.bytes) == (4096, 3 * (8192 + 8))

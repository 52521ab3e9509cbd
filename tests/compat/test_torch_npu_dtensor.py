"""Operators of torch_npu on DTensors return what they return on whole tensors.

Holds src/toprope/compat/torch_npu/distributed/tensor.
"""

import pytest

from cuda_programs import run_ranks
from torch_npu_programs import HEAD

pytestmark = [pytest.mark.native, pytest.mark.process]

PROGRAM = """
import os
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh

torch.npu.set_device(int(os.environ["LOCAL_RANK"]))
mesh = init_device_mesh("npu", (2,))
torch.manual_seed(0)
npu = torch.ops.npu
whole, rows, columns = Replicate(), Shard(0), Shard(1)

def random(*shape):
    return torch.randn(*shape, device="npu")

def placed(tensor, placement):
    return distribute_tensor(tensor, mesh, [placement])

def agree(results, parts, tolerance=1e-3):
    for result, part in zip(results, parts, strict=True):
        assert isinstance(part, DTensor)
        torch.testing.assert_close(part.full_tensor(), result, rtol=tolerance, atol=tolerance)
    return [part.placements[0] for part in parts]

def same(name, arguments, placements):
    remaining = iter(placements)
    parts = [placed(each, next(remaining)) if isinstance(each, torch.Tensor) else each for each in arguments]
    results, found = getattr(npu, name)(*arguments), getattr(npu, name)(*parts)
    is_list = isinstance(results, (tuple, list))
    return agree(results if is_list else [results], found if is_list else [found])

conv = ([1, 1], [1, 1], [1, 1], 1)
x, weight = random(2, 4, 8, 8), random(4, 4, 3, 3)
assert same("npu_conv2d", (x, weight, None, *conv), (whole, rows)) == [columns]
assert same("npu_conv2d", (x, weight, random(4), *conv), (rows, rows, whole)) == [rows]
grads = same("npu_conv2d_backward", (x, random(2, 4, 8, 8), weight, *conv, [True] * 3), (rows, rows, whole))
assert grads == [rows, Partial(), Partial()], grads
grads = same("npu_conv2d_backward", (x, random(2, 4, 8, 8), weight, *conv, [True] * 3), (whole, columns, rows))
assert grads == [Partial(), rows, rows], grads
assert same("npu_add_rms_norm", (random(4, 6, 8), random(4, 6, 8), random(8)), (columns, whole, whole)) == [columns] * 3
norm = (random(4, 8), random(4, 8), random(8), random(4, 1).abs())
assert same("npu_rms_norm_backward", norm, (rows, rows, whole, rows)) == [rows, Partial()]
assert same("npu_swiglu_backward", (random(4, 4), random(4, 8)), (rows, rows)) == [rows]
assert same("npu_transpose", (random(4, 6, 2), [2, 0, 1]), (columns,)) == [Shard(2)]
assert same("npu_layer_norm_eval", (random(4, 6), [6], random(6), random(6)), (rows, whole, whole)) == [rows]
assert same("npu_fast_gelu_backward", (random(4, 6), random(4, 6)), (rows, rows)) == [rows]
angles = random(1, 4, 1, 8), random(1, 4, 1, 8)
rotary = (random(2, 4, 2, 8), random(2, 4, 2, 8), *angles)
assert same("npu_rotary_mul_backward", rotary, (rows, rows, whole, whole)) == [rows, Partial(), Partial()]
for reduction, placement in ((0, rows), (1, whole)):  # a mean divides by all elements
    arguments = (random(4, 6), random(4, 6), random(4, 6).abs(), reduction)
    assert same("kl_div_backward", arguments, (rows,) * 3) == [placement]
assert same("repeat_interleave_backward_int", (random(4, 6), random(4, 3), 2, 1), (rows, rows)) == [rows]
index = torch.randint(0, 3, (4, 6), device="npu")
assert same("npu_gather_backward", (random(4, 6), [4, 3], 1, index, False), (rows, rows)) == [rows]
order = torch.randperm(8, device="npu").int()
tokens = (random(8, 6), order, 4, torch.float32, 2)
assert same("npu_moe_token_permute_grad_v2", tokens, (columns, whole)) == [columns]
assert same("_npu_dtype_cast_backward", (random(4, 6), torch.float16), (columns,)) == [columns]

# one weight of several groups
x, weight, groups = [random(8, 8).half()], [random(2, 8, 8).half()], torch.tensor([2, 8], device="npu")
options = {"split_item": 3, "group_type": 0}
expected = npu.npu_grouped_matmul(x, weight, group_list=groups, **options)
for of_weight, of_x, result in ((Shard(2), whole, columns), (columns, columns, Partial()), (rows, rows, whole)):
    found = npu.npu_grouped_matmul(
        [placed(x[0], of_x)], [placed(weight[0], of_weight)], bias=None, group_list=placed(groups, rows), **options
    )
    assert agree(expected, found, 0.02) == [result]
bias = [random(2, 8).half()]
expected = npu.npu_grouped_matmul(x, weight, bias=bias, group_list=groups, **options)
for of_weight, of_x, result in ((Shard(2), whole, columns), (columns, columns, whole)):  # a bias is added once
    found = npu.npu_grouped_matmul(
        [placed(x[0], of_x)], [placed(weight[0], of_weight)], bias=[placed(bias[0], rows)],
        group_list=placed(groups, rows), **options,
    )
    assert agree(expected, found, 0.02) == [result]

# several weights
x, weight = [random(8, 8).half(), random(4, 8).half()], [random(8, 4).half(), random(8, 4).half()]
options = {"split_item": 0, "group_type": -1}
expected = npu.npu_grouped_matmul(x, weight, **options)
for of_weight, result in ((columns, columns), (rows, Partial()), (whole, whole)):
    found = npu.npu_grouped_matmul([placed(e, columns) for e in x], [placed(e, of_weight) for e in weight], **options)
    assert agree(expected, found, 0.02) == [result] * 2

# in place
state, grad = [random(8, 8), random(8, 8), random(8, 8).abs()], random(8, 8)
parts = [placed(each, columns) for each in state]
numbers = (0.9, 0.99, 0.01, 0.1, 0.9, 0.99, 1e-6)
npu.npu_apply_adam_w(*numbers, placed(grad, rows), None, False, False, out=parts)
npu.npu_apply_adam_w(*numbers, grad, None, False, False, out=state)
agree(state, parts)
y, x, weight, groups = random(4, 8), random(8, 2).half(), random(8, 8).half(), torch.tensor([4, 8], device="npu")
part = placed(y, columns)
options = {"transpose_x": True, "transpose_weight": False, "group_type": 2}
npu.npu_grouped_matmul_add_(part, placed(x, whole), placed(weight, columns), placed(groups, whole), **options)
npu.npu_grouped_matmul_add_(y, x, weight, groups, **options)
agree([y], [part])
refused(
    RuntimeError, "Sharding propagation failed", npu.npu_grouped_matmul_add_,
    placed(y, rows), placed(x, whole), placed(weight, whole), placed(groups, whole), **options,
)

adam = npu.npu_apply_adam_w
refused(RuntimeError, "plain tensors next to DTensors", adam, *numbers, grad, None, False, False, out=parts)

# differentiable ones are torch's own operators to DTensor
for name, shapes in (("npu_swiglu", [(4, 8)]), ("npu_fast_gelu", [(4, 8)]), ("npu_rotary_mul", [(2, 4, 2, 8)] * 3)):
    leaves = [random(*shape).requires_grad_() for shape in shapes]
    parts = [placed(leaf.detach(), rows).requires_grad_() for leaf in leaves]
    getattr(npu, name)(*leaves).sum().backward()
    getattr(npu, name)(*parts).sum().backward()
    agree([leaf.grad for leaf in leaves], [part.grad for part in parts])
dist.destroy_process_group()
print("done")
"""


def test_operators_on_dtensors_agree_with_whole_tensors() -> None:
    assert [printed.strip()[-4:] for printed in run_ranks(PROGRAM, head=HEAD)] == ["done", "done"]

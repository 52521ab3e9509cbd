"""torch_npu's matrix products where the card matters: formats, families, copies from the card, and the checksum.

Holds compat/torch_npu/operators on a card against the same operators on the CPU. tests/sim/test_simulated.py runs this
module in a process with simulated cards.
"""

import ctypes

import pytest
import torch

import toprope.compat.torch_npu as torch_npu
from toprope.sim.metrics import counters
from toprope.sim.native import native

SIM = "910B3"


def from_card():
    """Copies from the card and synchronisations of this process so far."""
    found = counters.parse(ctypes.string_at(native().counters(), counters.SIZE))
    return found.copies_from_card, found.synchronisations


def test_checksum():
    a, b = (torch.randn(64, 64, device="npu", dtype=torch.bfloat16) for _ in range(2))
    c = a @ b
    found = torch_npu.matmul_checksum(a, b, c)
    assert (found.dtype, found.device.type, bool(found)) == (torch.bool, "npu", False)
    c[3, 5] += 1000
    assert bool(torch_npu.matmul_checksum(a, b, c))
    assert torch.equal(c, a @ b)
    with pytest.raises(TypeError, match="should be npu"):
        torch_npu.matmul_checksum(a.cpu(), b, c)


def test_reduce_sum_takes_one_format():
    x1, x2 = (torch.randint(-9, 9, shape, dtype=torch.int8, device="npu") for shape in ((2, 4, 32), (2, 32, 64)))
    kept = {
        "x1_scale": torch.rand(2, 4, device="npu"),
        "x2_scale": torch.ones(64, device="npu", dtype=torch.bfloat16),
    }
    with pytest.raises(RuntimeError, match="only support x2's format is nz"):
        torch_npu.npu_quant_matmul_reduce_sum(x1, x2, **kept)
    torch.npu.config.allow_internal_format = True
    try:
        nz = torch_npu.npu_format_cast(x2, 29)
    finally:
        torch.npu.config.allow_internal_format = False
    found = torch_npu.npu_quant_matmul_reduce_sum(x1, nz, **kept)
    want = ((x1.cpu().double() @ x2.cpu().double()) * kept["x1_scale"].cpu().double().unsqueeze(-1)).sum(0)
    torch.testing.assert_close(found.cpu().double(), want, rtol=1e-2, atol=1)


def test_tiles_and_views_of_formats():
    x = torch.randint(-9, 9, (4, 32), dtype=torch.int8)
    weight = torch.randint(-9, 9, (2, 32, 64), dtype=torch.int8)
    rest = [torch.tensor([2, 4]), torch.rand(2, 64), torch.rand(4)]
    want = torch_npu.npu_grouped_matmul_swiglu_quant(x, weight, *rest)[0]
    on_card = [each.npu() for each in rest]
    tiles = weight.reshape(2, 2, 16, 2, 32).permute(0, 3, 1, 2, 4).contiguous().npu()
    assert torch.equal(torch_npu.npu_grouped_matmul_swiglu_quant(x.npu(), tiles, *on_card)[0].cpu(), want)
    torch.npu.config.allow_internal_format = True
    try:
        view = torch_npu.npu_format_cast(weight.npu(), 29).view(2, 2, 2, 16, 32)
    finally:
        torch.npu.config.allow_internal_format = False
    assert torch.equal(torch_npu.npu_grouped_matmul_swiglu_quant(x.npu(), view, *on_card)[0].cpu(), want)


def test_groups_are_no_copy_from_the_card():
    x, w = torch.randn(6, 16, device="npu"), torch.randn(3, 16, 8, device="npu")
    groups = torch.tensor([1, 4, 6], device="npu")
    before = from_card()
    torch_npu.npu_grouped_matmul([x], [w], group_list=groups, group_type=0, split_item=2)
    assert from_card() == before


def test_kernels_of_other_families():
    x = torch.randn(4, 8, device="npu", dtype=torch.float16)
    with pytest.raises(RuntimeError, match="only the Ascend 950 has its kernel"):
        torch_npu.npu_fused_matmul(x, x.t())
    weight, scale = torch.ones(4, 8, device="npu", dtype=torch.int8), torch.ones(4, device="npu")
    with pytest.raises(RuntimeError, match="for the Ascend 310P, not for Ascend 910B"):
        torch_npu.npu_quant_matmul_dequant(x, weight, scale)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_products_of_half_precision_add_up_in_single(dtype):
    """The host's own kernels take minutes for the sizes of a model; the memory of the card holds no wide copies."""
    a, b, bias = (torch.randn(shape, device="npu", dtype=dtype) for shape in ((256, 512), (512, 1024), (1024,)))
    wide = a.float() @ b.float()
    torch.npu.empty_cache()
    torch.npu.reset_peak_memory_stats()
    before = torch.npu.memory_allocated()
    product = a @ b
    assert torch.npu.max_memory_allocated() - before <= product.nbytes + 512
    assert torch.equal(product, wide.to(dtype))
    assert torch.equal(torch.bmm(a[None], b[None])[0], product)
    out = torch.empty_like(product)
    assert torch.equal(torch.mm(a, b, out=out), product)
    assert torch.equal(torch.zeros_like(product).addmm_(a, b), product)
    torch.testing.assert_close(torch.addmm(bias, a, b), (wide + bias).to(dtype))
    torch.testing.assert_close(a @ b[:, 0], wide[:, 0].to(dtype))
    with pytest.raises(RuntimeError, match="dtype"):
        a @ b.float()

"""Storage formats of `torch_npu`: the numbers that a cast notes, and what else names a format.

Holds src/toprope/compat/torch_npu/operators/formats.py against the rules of Ascend/pytorch (FormatHelper.cpp).
"""

import pytest

from torch_npu_programs import on_card, outcomes

pytestmark = [pytest.mark.native, pytest.mark.process]

# The second one looks at warnings that come once.
CASES = {
    "base formats": """
from torch_npu import Format, get_npu_format, npu_format_cast

for dims, number in ((0, 2), (1, 2), (3, 2), (4, 0), (5, 30)):
    made = torch.ones([2] * dims, device="npu")
    assert get_npu_format(made) == number and type(get_npu_format(made)) is Format
    assert get_npu_format(made.view(-1)) == number  # the storage's, not the view's
x = torch.ones(2, 2, device="npu")
assert npu_format_cast(x, Format.NHWC) is x and get_npu_format(x) is Format.NHWC
assert get_npu_format(x[0]) == get_npu_format(x.detach()) == 1 and str(Format.NHWC) == "NHWC"
assert torch_npu.npu_format_cast_(x, 0) is x and get_npu_format(x) == 0
assert get_npu_format(x.clone()) == get_npu_format(x + 1) == 2
assert torch.ops.npu.get_npu_format(x) == 0
y = torch_npu.npu_format_cast(torch.ones(2, 2, device="npu"), x)
assert get_npu_format(y) == 0
refused(RuntimeError, "no storage format 5", npu_format_cast, x, 5)
refused(RuntimeError, "no storage format 12", npu_format_cast, x, Format.NC1HWC0_C04)
refused(RuntimeError, "CANN 9.1", npu_format_cast, x, 29, customize_dtype=3)
refused(RuntimeError, "on the NPU, but it is on cpu", get_npu_format, torch.ones(2))
host = torch.ones(2)
assert npu_format_cast(host, 29) is host
""",
    "formats of the card take a switch": """
import warnings
from torch_npu import Format, get_npu_format, npu_format_cast

x = torch.randn(3, 4, device="npu", requires_grad=True)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    copy = npu_format_cast(x, 29)
    image = npu_format_cast(torch.ones(2, 3, 4, 4, device="npu"), 3)
    npu_format_cast(x, 29)
assert get_npu_format(copy) == 2 and get_npu_format(image) == 0
assert [str(each.message).partition(":")[0] for each in caught] == [
    "torch.npu.config.allow_internal_format is False"] * 2

torch.npu.config.allow_internal_format = True
nz = npu_format_cast(x, Format.FRACTAL_NZ)
assert get_npu_format(nz) == 29 and get_npu_format(x) == 2 and torch.equal(nz, x)
assert nz.data_ptr() != x.data_ptr() and npu_format_cast(nz, 29) is nz
nz.sum().backward()
assert x.grad.tolist() == torch.ones(3, 4).tolist()
assert torch.equal(nz.detach() @ x.detach().t(), x.detach() @ x.detach().t())
back = npu_format_cast(nz.detach(), 2)
assert get_npu_format(back) == 2 and torch.equal(back, x)
assert get_npu_format(npu_format_cast(x.detach(), nz.detach())) == 29
with warnings.catch_warnings(record=True):
    warnings.simplefilter("always")
    assert get_npu_format(npu_format_cast(torch.ones(3, device="npu"), 29)) == 2
image = torch_npu.npu_format_cast_(torch.ones(2, 3, 4, 4, device="npu"), 3)
assert get_npu_format(image) == 3
image.copy_(torch.zeros(2, 3, 4, 4))
assert get_npu_format(image) == 3 and float(image.sum()) == 0
other = torch.ones(2, 3, 4, 4, device="npu")
assert torch_npu.npu_format_cast_(image, other) is image and float(image.sum()) == 96
assert get_npu_format(image) == 3
module = torch.nn.Linear(4, 4).npu()
module.weight.data = npu_format_cast(module.weight.data, 29)
assert get_npu_format(module.weight) == 29 and module(x.detach()).shape == (3, 4)
""",
    "copies and files keep a format": """
import copy, io
from torch_npu import Format, get_npu_format, npu_format_cast

torch.npu.config.allow_internal_format = True
nz = npu_format_cast(torch.randn(3, 4, device="npu"), 29)
image = npu_format_cast(torch.ones(2, 3, 4, 4, device="npu"), 3)
plain = torch.ones(2, 3, device="npu")
module = torch.nn.Linear(4, 4).npu()
module.weight.data = npu_format_cast(module.weight.data, 29)
copied = copy.deepcopy(nz)
assert get_npu_format(copied) == 29 and torch.equal(copied, nz) and copied.data_ptr() != nz.data_ptr()
assert get_npu_format(copy.deepcopy(plain)) == 2
both = copy.deepcopy([nz, nz[0]])
assert both[0].data_ptr() == both[1].data_ptr() and get_npu_format(both[1]) == 29

def saved(thing, **options):
    buffer = io.BytesIO()
    torch.save(thing, buffer)
    buffer.seek(0)
    return torch.load(buffer, **options)

loaded = saved({"nz": nz, "image": image, "plain": plain, "module": module.state_dict()})
found = [get_npu_format(loaded[name]) for name in ("nz", "image", "plain")]
assert found == [29, 3, 2] and torch.equal(loaded["nz"], nz) and torch.equal(loaded["image"], image)
assert get_npu_format(loaded["module"]["weight"]) == 29
assert torch.equal(saved(nz, map_location="cpu"), nz.cpu())
assert sorted(torch._utils.get_tensor_metadata(nz)) == [
    "base_sizes_/3/4/", "base_strides_/4/1/", "npu_format_/FRACTAL_NZ", "origin_format_/ND", "storage_sizes_/3/4/"]
assert torch._utils.get_tensor_metadata(plain) == {}
torch.npu.config.allow_internal_format = False
assert get_npu_format(saved(nz)) == 2
""",
    "tensors made with a format": """
from torch_npu import Format, empty_with_format, get_npu_format

made = empty_with_format((2, 3), dtype=torch.half, device="npu", acl_format=29)
assert (get_npu_format(made), made.dtype, made.shape) == (29, torch.half, (2, 3))
for shape, asked, got in (((2, 3), 2, 2), ((2, 3), 0, 2), ((4,), 29, 2), ((1,), 2, 2), ((1, 2, 3, 4), 30, 0),
                          ((1, 2, 3, 4, 5), 30, 30), ((2, 3), 30, 2), ((1, 2, 3, 4), 3, 3), ((), 3, 2)):
    assert get_npu_format(empty_with_format(shape, device="npu", acl_format=asked)) == got, (shape, asked)
refused(RuntimeError, "not on cpu", empty_with_format, (2,), device="cpu")
refused(RuntimeError, "not on None", empty_with_format, (2,))
refused(RuntimeError, "pinned", empty_with_format, (2,), device="npu", pin_memory=True)
refused(RuntimeError, "format 99", empty_with_format, (2,), device="npu", acl_format=99)
assert torch_npu.get_storage_size(torch.ones(3, 4, device="npu")[0]) == 12
refused(RuntimeError, "on the NPU", torch_npu.get_storage_size, torch.ones(2))
""",
    "raw copies": """
source = torch.arange(12.0, device="npu")
target = torch.zeros(2, 3, device="npu")
assert torch_npu.copy_memory_(target, source[2:]) is target
assert target.tolist() == [[2, 3, 4], [5, 6, 7]]
target.t().mul_(0)
torch_npu.copy_memory_(target.t(), source, non_blocking=True)  # as it lies, whatever the strides
assert target.flatten().tolist() == [0, 1, 2, 3, 4, 5]
refused(RuntimeError, "same dtype", torch_npu.copy_memory_, target, source.half())
refused(RuntimeError, "same device", torch_npu.copy_memory_, torch.zeros(2), source)
refused(RuntimeError, "on the NPU", torch_npu.copy_memory_, target, torch.zeros(6))
refused(RuntimeError, "out of bounds", torch_npu.copy_memory_, target, source[8:])
""",
}


@pytest.fixture(scope="module")
def failures():
    return outcomes(CASES)


@pytest.mark.parametrize("name", CASES)
def test_formats(failures, name) -> None:
    assert failures[name] == ""


def test_the_950_takes_fractal_nz_without_it() -> None:
    on_card(
        """
        x = torch.ones(16, 16, device="npu")
        assert torch_npu.get_npu_format(torch_npu.npu_format_cast(x, 29)) == 29
        """,
        TOPROPE_SIM="950PR_9599",
    )


@pytest.mark.slow
def test_a_compiled_cast_keeps_values() -> None:
    on_card("""
        torch.npu.config.allow_internal_format = True
        def cast(x):
            return torch_npu.npu_format_cast(x * 2, 29) + 1
        compiled = torch.compile(cast, backend="aot_eager", fullgraph=True)
        x = torch.randn(3, 4, device="npu")
        assert torch.equal(compiled(x), x * 2 + 1)
    """)

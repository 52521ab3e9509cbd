"""The C++ kernels of quantised tensors on every set of instructions of this CPU, and the layer on top of them.

Held: tiers/csrc, `quant.kernels`, `quant.matmul` and `quant.linear`; decoding must give the same bits on all of them.
"""

from __future__ import annotations

import copy
import io
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from device_stand_ins import run_anew, told
from toprope.tiers import pages
from toprope.tiers.quant import kernels as native

pytestmark = [pytest.mark.native, pytest.mark.process]

FORMS = list(pages.FORMATS)
SHAPES = [(1, 2), (4, 128), (13, 200), (30, 1000), (25, 70), (50, 600)]
BATCHES = [1, 2, 3, 5, 8, 9, 16, 17, 33, 70, 300]


@pytest.fixture(scope="module")
def kernels() -> native.Kernels:
    found = native.kernels()
    if found is None:
        pytest.skip(f"no kernels here: {native.why_none()}")
    return found


def pages_of(form: str) -> list[pages.QuantisedTensor]:
    torch.manual_seed(5)
    return [pages.encode(torch.randn(shape) * torch.rand(shape[0], 1), form, "reference") for shape in SHAPES]


@pytest.mark.parametrize("form", FORMS)
def test_all_paths_decode_the_same_bits(kernels: native.Kernels, form: str) -> None:
    odd = [pages.encode(torch.randn(shape), form, "reference") for shape in ((3, 33), (2, 7, 65), (5,))]
    for page in [*pages_of(form), *odd]:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            wanted = pages.decode(page, dtype, path="torch")
            for path in kernels.paths:
                assert torch.equal(pages.decode(page, dtype, path=path), wanted), (path, page.shape)


def test_subnormal_values_and_large_outputs_are_decoded_to_the_bit(kernels: native.Kernels) -> None:
    for form, source in (
        ("mxfp4", torch.randn(4, 256) * 2.0**-124),
        ("nf4", torch.randn(4, 256) * 2.0**-127),
        ("nvfp4", torch.randn(16, 512).repeat(144, 4)),  # past the cache
    ):
        page = pages.encode(source, form, "reference")
        for dtype in (torch.float32, torch.bfloat16):
            wanted = pages.decode(page, dtype, path="torch")
            for path in kernels.paths:
                assert torch.equal(pages.decode(page, dtype, path=path), wanted), (form, path)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_on_all_paths(kernels: native.Kernels, form: str, dtype: torch.dtype) -> None:
    # Of the sum of sizes of what is added up: fp32 sums, and one or two roundings to bf16 (of the result; of weights).
    most = 1e-5 if dtype == torch.float32 else 6e-3
    for page in pages_of(form):
        weight = pages.decode(page, torch.float64)
        bias = torch.randn(page.rows).to(dtype)
        for batch in BATCHES:
            x = torch.randn(batch, page.columns).to(dtype)
            exact = functional.linear(x.double(), weight, bias.double())
            sizes = functional.linear(x.double().abs(), weight.abs(), bias.double().abs())
            for path in kernels.paths:
                found = pages.product(x, page, bias, path=path)
                assert found.dtype == dtype
                assert ((found.double() - exact).abs() / sizes).max() < most, (path, page.shape, batch)


def test_a_spoilt_block_spoils_its_row_alone(kernels: native.Kernels) -> None:
    source = torch.randn(16, 256)
    source[3, 7] = float("nan")
    for form in FORMS:
        page = pages.encode(source, form)
        for path in kernels.paths:
            for batch in (1, 20):
                found = pages.product(torch.randn(batch, 256, dtype=torch.bfloat16), page, path=path)
                assert torch.isnan(found).all(dim=0).tolist() == [row == 3 for row in range(16)]
                assert torch.isnan(found).any(dim=0).tolist() == [row == 3 for row in range(16)]


def test_other_shapes_and_dtypes_of_activations() -> None:
    page = pages.encode(torch.randn(24, 64), "nvfp4")
    weight = pages.decode(page)
    for x in (torch.randn(64), torch.randn(2, 3, 64), torch.randn(0, 64), torch.randn(64, 5).t()):
        torch.testing.assert_close(pages.product(x, page), functional.linear(x, weight))
    half = torch.randn(4, 64, dtype=torch.float16)
    torch.testing.assert_close(pages.product(half, page), functional.linear(half.float(), weight).half())
    double = torch.randn(4, 64, dtype=torch.float64)
    torch.testing.assert_close(pages.product(double, page), functional.linear(double, weight.double()))
    odd = pages.encode(torch.randn(24, 63), "nf4")
    x = torch.randn(3, 63)
    torch.testing.assert_close(pages.product(x, odd), functional.linear(x, pages.decode(odd)))


def test_a_layer_computes_trains_its_inputs_and_comes_back_from_a_state_dict() -> None:
    torch.manual_seed(2)
    linear = torch.nn.Linear(96, 40)
    for form in FORMS:
        layer = pages.QuantisedLinear.from_linear(linear, form)
        weight = pages.decode(layer.page)
        x = torch.randn(12, 96, requires_grad=True)
        layer(x).square().sum().backward()
        found, to_bias = x.grad, layer.bias.grad
        x.grad, layer.bias.grad = None, None
        functional.linear(x, weight, linear.bias).square().sum().backward()
        torch.testing.assert_close(found, x.grad)
        torch.testing.assert_close(to_bias, linear.bias.grad)
        linear.bias.grad = None
        assert [name for name, each in layer.named_parameters() if each.requires_grad] == ["bias"]

        file = io.BytesIO()
        torch.save(layer.state_dict(), file)
        file.seek(0)
        for other in (pages.QuantisedLinear(96, 40, format=form), pages.QuantisedLinear(96, 40, format="int8")):
            assert not other(x).any()
            other.load_state_dict(torch.load(file))
            file.seek(0)
            assert torch.equal(other(x), layer(x))
            assert f"format={form}" in repr(other)
        assert torch.equal(copy.deepcopy(layer)(x), layer(x))
        moved = copy.deepcopy(layer).to(torch.bfloat16)
        assert torch.equal(moved.codes, layer.codes)
        assert torch.equal(moved.scales, layer.scales)
        assert moved(x.bfloat16()).dtype == torch.bfloat16


def test_a_compiled_block_has_the_layer_as_one_operator() -> None:
    layer = pages.QuantisedLinear.from_linear(torch.nn.Linear(64, 32), "nvfp4")
    block = torch.compile(lambda x: functional.silu(layer(x)) * 2, backend="aot_eager", fullgraph=True)
    x = torch.randn(5, 64, requires_grad=True)
    torch.testing.assert_close(block(x), functional.silu(layer(x)) * 2)
    block(x).sum().backward()
    found, x.grad = x.grad, None
    bias, layer.bias.grad = layer.bias.grad, None
    (functional.silu(layer(x)) * 2).sum().backward()
    torch.testing.assert_close(found, x.grad)
    torch.testing.assert_close(bias, layer.bias.grad)


def test_a_measurement_is_taken_once() -> None:
    first = pages.measure("nvfp4", 1, 256)
    assert first is pages.measure("nvfp4", 1, 256)
    assert first.seconds > 0
    assert first.speedup == first.plain_seconds / first.seconds
    assert first.faster == (first.speedup > 1)


@pytest.mark.slow
def test_a_layer_on_a_simulated_card_decodes_there() -> None:
    code = """
        import torch
        from toprope.tiers import pages
        errors, places = [], []
        for form in pages.FORMATS:
            layer = pages.QuantisedLinear.from_linear(torch.nn.Linear(64, 32), form)
            x = torch.randn(4, 64)
            wanted = layer(x)
            layer.to("npu:0")
            there = x.to("npu:0").requires_grad_()
            found = layer(there)
            found.sum().backward()
            errors.append((found.cpu() - wanted).abs().max().item())
            places += [str(layer.codes.device), str(found.device), str(there.grad.device)]
            page = pages.encode(torch.randn(8, 64).to("npu:0"), form)
            places.append(str(pages.decode(page).device))
        tell(errors, places)
    """
    errors, places = told(code, by=run_anew, TOPROPE_SIM="910B3x1", TORCH_DEVICE_BACKEND_AUTOLOAD="1")
    assert max(errors) < 1e-5
    assert set(places) == {"npu:0"}


def test_threads_and_forks() -> None:
    """Products from many threads, in a child of fork, and by a single thread, are all the same."""
    code = """
        import os, threading, torch
        from toprope.tiers import pages
        from toprope.tiers.quant import kernels as native
        page = pages.encode(torch.randn(64, 512), "nvfp4", "reference")
        x = torch.randn(40, 512)
        torch.set_num_threads(4)
        wanted = pages.product(x, page)
        wrong = []
        def work():
            for _ in range(20):
                if not torch.equal(pages.product(x, page), wanted):
                    wrong.append(1)
        threads = [threading.Thread(target=work) for _ in range(4)]
        for each in threads: each.start()
        for each in threads: each.join()
        child = os.fork()
        if child == 0:
            os._exit(0 if torch.equal(pages.product(x, page), wanted) else 1)
        status = os.waitpid(child, 0)[1]
        torch.set_num_threads(1)
        tell(len(wrong), status, torch.equal(pages.product(x, page), wanted), native.kernels() is not None)
    """
    wrong, status, alone, there = told(code)
    assert (wrong, status, alone) == (0, 0, True)
    assert there or native.kernels() is None


def test_products_run_in_the_threads_of_torchs_operators() -> None:
    """Threads of their own would share the cores with torch's, which go on spinning after an operator."""
    code = """
        import os, torch
        from toprope.tiers import pages
        from toprope.tiers.quant import kernels as native
        torch.set_num_threads(4)
        page, x = pages.encode(torch.randn(4096, 512), "nvfp4", "reference"), torch.randn(1, 512)
        torch.randn(512, 512) @ torch.randn(512, 512)
        torch.randn(4096, 512).exp()
        before = len(os.listdir("/proc/self/task"))
        pages.product(x, page)
        tell(before, len(os.listdir("/proc/self/task")), native.kernels() is not None)
    """
    before, after, there = told(code)
    if not there or "OpenMP" not in torch.__config__.parallel_info():
        pytest.skip("no kernels, or a torch without OpenMP")
    assert (before >= 4, after) == (True, before)


def test_without_a_compiler_torch_decodes_and_says_so_once(tmp_path: Path) -> None:
    code = """
        import logging, torch
        from toprope.tiers import pages
        said = []
        logging.getLogger("toprope").addFilter(lambda record: said.append(record.getMessage()) or False)
        page = pages.encode(torch.randn(8, 64), "nvfp4")
        x = torch.randn(3, 64)
        same = torch.allclose(pages.product(x, page), x @ pages.decode(page).T, atol=1e-5)
        found = pages.measure("nvfp4", 1, 256)
        tell(same, len(said), said[0], found.faster, found.reason)
    """
    same, count, text, faster, reason = told(code, CXX="/no/such/compiler", TOPROPE_CACHE_DIR=str(tmp_path))
    assert (same, count, faster) == (True, 1, False)
    assert "CXX names a compiler that is not there" in text
    assert "CXX names a compiler that is not there" in reason

"""Quantised tensors (`tiers.pages`) against a reference in plain Python, against torchao, and by their errors.

Held: `quant.codec`, `quant.formats`, `quant.tensor` and the encoding in C++, which must give the same bytes.
"""

from __future__ import annotations

import importlib.util
import math
import warnings

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import pages_reference as plain
from device_stand_ins import told
from toprope.errors import PageError
from toprope.tiers import pages

pytestmark = [pytest.mark.native, pytest.mark.process]

FORMS = ["nvfp4", "mxfp4", "nf4"]
numbers = st.one_of(
    st.floats(
        width=32,
        allow_nan=False,
        allow_infinity=False,
        allow_subnormal=False,
        min_value=-(2.0**100),
        max_value=2.0**100,
    ),
    st.sampled_from([0.0, -0.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -5.0, 6.0, math.nan, math.inf, 30.0, 1e-20]),
)
matrices = st.tuples(st.integers(1, 4), st.one_of(st.integers(1, 70), st.sampled_from([16, 32, 64, 128]))).flatmap(
    lambda shape: st.lists(
        st.lists(numbers, min_size=shape[1], max_size=shape[1]), min_size=shape[0], max_size=shape[0]
    )
)


def same(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Equal to the bit, but for the bits of NaN."""
    return torch.equal(first.nan_to_num(nan=1e35), second.nan_to_num(nan=1e35))


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@given(rows=matrices)
@example(rows=[[0.0] * 33, [math.nan] + [1.0] * 32])
@example(rows=[[1.0, -3.0, 0.3]])
@example(rows=[[2.0**-126, 0.0, -0.0, -(2.0**-126)]])  # its factor is larger than the largest float32
def test_the_reference_scales_and_what_is_decoded_are_those_of_plain_python(form: str, rows: list[list[float]]) -> None:
    whole = plain.global_scale(rows) if form == "nvfp4" else 1.0
    block = plain.BLOCKS[form]
    codes: list[int] = []
    scales: list[float] = []
    values: list[list[float]] = []
    for row in rows:
        values.append([])
        for start in range(0, len(row), block):
            part, scale = plain.reference_block(row[start : start + block], form, whole)
            codes += part
            scales.append(scale)
            values[-1] += [plain.decode_value(code, scale, form, whole) for code in part]
    page = pages.encode(torch.tensor(rows, dtype=torch.float32), form, "reference")
    assert bytes(page.codes.tolist()) == plain.pack(codes)
    stored = page.typed_scales().flatten()
    if form == "nf4":
        assert same(stored, torch.tensor(scales))
    else:
        assert stored.view(torch.uint8).tolist() == scales
    for path in (None, "torch"):
        assert same(pages.decode(page, path=path), torch.tensor(values, dtype=torch.float32))


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@given(rows=matrices)
def test_a_searched_scale_is_never_worse_than_the_rule_in_any_block(form: str, rows: list[list[float]]) -> None:
    source = torch.tensor(rows, dtype=torch.float32)
    errors = []
    for rule in ("search", "reference"):
        loss = (pages.decode(pages.encode(source, form, rule)).double() - source.double()) ** 2
        loss = torch.nn.functional.pad(loss, (0, -loss.shape[1] % plain.BLOCKS[form]))
        errors.append(loss.view(-1, plain.BLOCKS[form]).sum(1).nan_to_num())
    assert (errors[0] <= errors[1] * (1 + 1e-5) + 1e-44).all()


@pytest.mark.parametrize("form", FORMS)
def test_kernels_and_torch_encode_the_same_bytes(form: str) -> None:
    torch.manual_seed(9)
    for dtype in (torch.float32, torch.bfloat16):
        for spread in (1.0, 1e-37, 1e36):
            source = (torch.randn(96, 1024) * torch.rand(96, 1) * spread).to(dtype)
            source[3], source[4, ::5], source[5] = 0.0, -0.0, spread * 0.25
            if spread == 1.0:
                source[7, 100], source[8, 600] = math.nan, -math.inf
                source[9] = torch.tensor([0.25, -0.75, 1.25, 1.75, 2.5, -3.5, 5.0, 6.0]).repeat(128) * 2688 / 6
            ours, torchs = (pages.encode(source, form, "reference", path=path) for path in (None, "torch"))
            for name, tensor in torchs.state_dict().items():
                assert torch.equal(ours.state_dict()[name], tensor), (dtype, spread, name)
            # sums of errors may differ in their last bits, and so decide otherwise between scales that are as good
            ours, torchs = (pages.encode(source, form, "search", path=path) for path in (None, "torch"))
            assert (ours.typed_scales().float() != torchs.typed_scales().float()).float().mean() < 0.002
            assert ours.codes.eq(torchs.codes).float().mean() > 0.998


def test_every_code_and_every_scale() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    for form, per_row in (("nvfp4", 16), ("mxfp4", 32)):
        rows = 256 * per_row // 32 * 32 // per_row
        scales = torch.arange(256, dtype=torch.uint8)[:rows]
        packed = codes.repeat(rows)[: rows * per_row // 2]
        whole = torch.tensor([0.37]).view(torch.uint8) if form == "nvfp4" else None
        page = pages.QuantisedTensor(pages.FORMATS[form], (rows, per_row), torch.float32, packed, scales, whole)
        wanted = [
            [
                plain.decode_value(byte >> shift & 15, row, form, float(torch.tensor(0.37)))
                for byte in packed[row * per_row // 2 : (row + 1) * per_row // 2].tolist()
                for shift in (0, 4)
            ]
            for row in range(rows)
        ]
        for path in ("torch", None):
            assert same(pages.decode(page, path=path), torch.tensor(wanted, dtype=torch.float32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 0), (7, 33), (2, 3, 48), (1, 70_001)])
def test_any_shape_and_dtype_in_the_bytes_that_it_takes(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    source = torch.randn(shape, dtype=torch.float64).to(dtype)
    for form in pages.FORMATS.values():
        page = pages.encode(source, form.name)
        count, columns = source.numel(), shape[-1] if shape else 1
        blocks = 0 if count == 0 else count // columns * form.blocks(columns)
        assert page.codes.nbytes == (-(-count // 2) if form.bits == 4 else count)
        assert page.nbytes == page.codes.nbytes + blocks * form.scale_dtype.itemsize + 4 * form.has_global
        back = pages.decode(page)
        assert (back.shape, back.dtype) == (source.shape, dtype)
        if count:
            assert (back.double() - source.double()).norm() <= 0.2 * source.double().norm()


def test_a_nan_or_an_infinity_spoils_its_own_block_alone() -> None:
    source = torch.randn(4, 128)
    for form, block in (*plain.BLOCKS.items(), ("int8", 128)):
        for wrong in (math.nan, math.inf, -math.inf):
            bad = source.clone()
            bad[1, 70] = wrong
            for rule in ("search", "reference"):
                back = pages.decode(pages.encode(bad, form, rule))
                lost = torch.zeros(4, 128, dtype=torch.bool)
                lost[1, 70 // block * block : (70 // block + 1) * block] = True
                assert torch.equal(torch.isnan(back), lost)


def test_outliers_of_30_sigma_cost_their_blocks_alone() -> None:
    torch.manual_seed(3)
    source = torch.randn(64, 1024)
    source[::8, 5] = 30.0
    for form, most in (("nvfp4", 0.14), ("mxfp4", 0.16), ("nf4", 0.14)):
        back = pages.decode(pages.encode(source, form))
        assert (back - source).norm() / source.norm() < most
        assert (back[1::8] - source[1::8]).norm() / source[1::8].norm() < 0.12


def test_errors_on_gaussian_weights() -> None:
    torch.manual_seed(0)
    source = torch.randn(512, 2048) * 0.02
    for form, rule, most in (
        ("nvfp4", "reference", 0.096), ("nvfp4", "search", 0.088), ("mxfp4", "reference", 0.115),
        ("mxfp4", "search", 0.112), ("nf4", "reference", 0.093), ("nf4", "search", 0.090), ("int8", "search", 0.010),
    ):  # fmt: skip
        error = (pages.decode(pages.encode(source, form, rule)) - source).norm() / source.norm()
        assert error <= most, (form, rule)


@pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="torchao is not installed (extra dev)")
def test_bytes_are_those_of_torchao_and_torchao_decodes_ours() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchao.prototype.mx_formats.mx_tensor import to_dtype, to_mx
        from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale

    torch.manual_seed(1)
    for dtype in (torch.float32, torch.bfloat16):
        source = (torch.randn(64, 512) * torch.rand(64, 1) * 3).to(dtype)
        source[:, 32:64] = 0.0
        source[3] *= 1e-3  # scales below the smallest that E4M3 has
        source[5, ::7] *= 30
        theirs = NVFP4Tensor.to_nvfp4(source, per_tensor_scale=per_tensor_amax_to_scale(source.abs().max()))
        ours = pages.encode(source, "nvfp4", "reference")
        assert torch.equal(ours.codes, theirs.qdata.flatten())
        assert torch.equal(ours.scales, theirs.scale.view(torch.uint8).flatten())
        assert torch.equal(ours.global_scale.view(torch.float32)[0], theirs.per_tensor_scale)
        assert torch.equal(pages.decode(ours), theirs.dequantize())
        scales, codes = to_mx(source, torch.float4_e2m1fn_x2, 32)
        ours = pages.encode(source, "mxfp4", "reference")
        assert torch.equal(ours.codes, codes.flatten())
        assert torch.equal(ours.scales, scales.view(torch.uint8).flatten())
        # the default's bytes, read by torchao
        page = pages.encode(source, "nvfp4")
        whole = page.global_scale.view(torch.float32)[0]
        read = NVFP4Tensor(page.codes.view(64, 256), page.typed_scales(), 16, dtype, whole)
        assert torch.equal(read.dequantize(), pages.decode(page))
        page = pages.encode(source, "mxfp4")
        read = to_dtype(page.codes.view(64, 256), page.typed_scales(), torch.float4_e2m1fn_x2, 32, dtype)
        assert torch.equal(read, pages.decode(page))


def test_a_page_survives_torch_save_safetensors_and_a_move(tmp_path) -> None:
    from safetensors.torch import load_file, save_file

    for form in pages.FORMATS:
        page = pages.encode(torch.randn(5, 37, dtype=torch.bfloat16), form)
        torch.save(page.state_dict("w."), tmp_path / "page.pt")
        save_file(page.state_dict("w."), tmp_path / "page.safetensors")
        for state in (torch.load(tmp_path / "page.pt"), load_file(tmp_path / "page.safetensors")):
            again = pages.QuantisedTensor.from_state_dict(state, "w.")
            assert (again.format, again.shape, again.dtype) == (page.format, page.shape, page.dtype)
            assert torch.equal(pages.decode(again), pages.decode(page))


def test_what_cannot_be_encoded_or_read_is_refused() -> None:
    page = pages.encode(torch.randn(4, 16), "nvfp4")
    state = page.state_dict()
    for call, words in (
        (lambda: pages.encode(torch.randn(4), "fp4"), "no format 'fp4'"),
        (lambda: pages.encode(torch.randn(4), scale="best"), "no rule 'best'"),
        (lambda: pages.encode(torch.ones(4, dtype=torch.int32)), "torch.int32"),
        (lambda: pages.decode(page, out=torch.empty(4, 17)), "decoded into this tensor"),
        (lambda: pages.decode(page, out=torch.empty(4, 16, dtype=torch.int32)), "decoded into this tensor"),
        (lambda: pages.QuantisedTensor.from_state_dict({}), "lacks header, codes, scales"),
        (lambda: pages.QuantisedTensor.from_state_dict(state | {"codes": state["codes"][1:]}), "codes do not fit"),
        (
            lambda: pages.QuantisedTensor.from_state_dict(state | {"header": state["header"][1:]}),
            "header of a page cannot be read",
        ),
        (lambda: pages.product(torch.randn(2, 15), page), "do not fit a page"),
    ):
        with pytest.raises(PageError, match=words):
            call()
    high = bytes(state["header"].tolist()).replace(b"low first", b"high first")
    with pytest.raises(PageError, match="not known here"):
        pages.QuantisedTensor.from_state_dict(state | {"header": torch.tensor(list(high), dtype=torch.uint8)})


@pytest.mark.slow
def test_encoding_takes_less_than_twice_the_tensor_beside_it() -> None:
    code = """
        import resource, threading, time, torch
        from toprope.tiers import pages
        torch.set_num_threads(1)
        ratios = []
        def peak():  # since it was last set back
            with open("/proc/self/status") as file:
                return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))
        def reset():
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")
        for form in pages.FORMATS:
            pages.encode(torch.randn(64, 4160), form)
        for form in ("nvfp4", "nf4", "int8"):
            for dtype, shape in ((torch.float32, (1024, 4096)), (torch.bfloat16, (5, 1_000_001))):
                source = torch.ones(shape, dtype=dtype)
                reset()
                before = peak()
                page = pages.encode(source, form, "reference")
                ratios.append((peak() - before) / source.nbytes)
        tell(ratios)
    """
    ratios = told(code)
    assert len(ratios) == 6
    assert max(ratios) < 2.0


def test_the_door_is_light() -> None:
    assert told("import sys, toprope.tiers; tell('toprope.tiers.pages' in sys.modules)") is False


def test_the_former_name_of_a_quantised_tensor_is_deprecated() -> None:
    with pytest.warns(DeprecationWarning, match="pages.Page is QuantisedTensor now"):
        assert pages.Page is pages.QuantisedTensor  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="no attribute 'Pages'"):
        pages.Pages  # type: ignore[attr-defined] # noqa: B018

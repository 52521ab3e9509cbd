"""Table of refused dtypes: answers against errors that users reported, and rows that are whole, sourced and torch's.

Holds src/toprope/support/refusals.py, refusals.toml and the page docs/refusals.md.
"""

import datetime
import pathlib
import re
import subprocess
import sys
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toprope import chips
from toprope.support import refusals, refusals_page

pytestmark = pytest.mark.process

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = tomllib.loads(refusals.FILE.read_text(encoding="utf-8"))
CHIPS = [chips.get(name) for name in chips.names()]
NEW = [chip for chip in CHIPS if chip.supports("bfloat16")]
OLD = [chip for chip in CHIPS if not chip.supports("bfloat16")]
A2, A5 = chips.get("910B3"), chips.get("950PR")
VENDOR_ONLY = {"HIFLOAT8", "FLOAT4_E1M2"}
ENTRIES = [pytest.param(entry, id=f"{entry['kernel']}-{entry['operands']}") for entry in DATA["row"]]


def message(operator, dtypes, chip):
    found = refusals.refusal(operator, dtypes, chips.get(chip))
    return found and found.message


# -- what users met, word for word (newer versions begin the sentence with "Tensor")


def test_flux_repeat_interleave_float64():
    # https://github.com/huggingface/diffusers/issues/10428
    assert message("aten::repeat_interleave.self_int", ["float64"], "910B3") == (
        "Tensor self not implemented for DT_DOUBLE, should be in dtype support list "
        "[DT_UINT8,DT_INT8,DT_INT16,DT_INT32,DT_INT64,DT_BOOL,DT_FLOAT16,DT_FLOAT,DT_BFLOAT16,]."
    )
    assert message("aten::repeat_interleave.self_int", ["float32"], "910B3") is None


def test_wan_index_complex64():
    # https://github.com/vllm-project/vllm-omni/issues/4911, on a 910B3
    found = message("aten::index.Tensor", ["complex64", ["int64"]], "910B3")
    assert found.startswith("Tensor self not implemented for DT_COMPLEX64, should be in dtype support list [DT_FLOAT,")
    assert "COMPLEX" not in found.partition("[")[2]
    assert message("aten::index.Tensor", ["float32", ["int64"]], "910B3") is None
    assert message("aten::index.Tensor", ["complex64", ["int64"]], "950PR") is None


def test_helios_expm1_float64_whole_text():
    # https://github.com/sgl-project/sglang/pull/29011 (there a file and a line follow the first colon)
    found = refusals.refusal("aten::expm1", ["float64"], A2)
    when = datetime.datetime(2026, 6, 23, 3, 49, 48, 970240)
    assert found.stamped(when, pid=1920919, device=0, rank=0) == (
        "expm1: NPU function error: call aclnnExpm1 failed, error code is 161002\n"
        "[ERROR] 2026-06-23-03:49:48 (PID:1920919, Device:0, RankID:0) ERR00100 PTA call acl api failed.\n"
        "[PID: 1920919] 2026-06-23-03:49:48.970.240 AclNN_Parameter_Error(EZ1001): Tensor self not implemented for "
        "DT_DOUBLE, should be in dtype support list [DT_FLOAT,DT_FLOAT16,DT_INT64,DT_BOOL,DT_BFLOAT16,]."
    )


def test_complex32_random_numbers():
    # https://github.com/flagos-ai/FlagGems/issues/3267: the same text without times
    assert refusals.refusal("aten::normal_", ["complex32"], A2).text.splitlines()[:2] == [
        "normal_: NPU function error: call aclnnInplaceNormal failed, error code is 161002",
        "[ERROR] ERR00100 PTA call acl api failed.",
    ]
    listed = "[DT_FLOAT16,DT_FLOAT,DT_DOUBLE,DT_INT16,DT_INT32,DT_INT64,DT_INT8,DT_UINT8,DT_BOOL,DT_BFLOAT16,]"
    assert listed in message("aten::normal_", ["complex32"], "910B3")


def test_bfloat16_on_the_310p():
    # https://github.com/hiyouga/LlamaFactory/issues/7522 on an Ascend310P3, and issue 4165
    assert message("npu::npu_dtype_cast", ["bfloat16"], "310P3") == (
        "Tensor self not implemented for DT_BFLOAT16, should be in dtype support list [DT_FLOAT16,DT_FLOAT,DT_DOUBLE,"
        "DT_INT8,DT_UINT8,DT_INT16,DT_INT32,DT_INT64,DT_UINT16,DT_UINT32,DT_UINT64,DT_BOOL,DT_COMPLEX64,DT_COMPLEX128,]."
    )
    for operator in ("aten::mm", "aten::mul.Tensor", "aten::native_layer_norm", "aten::silu", "aten::_softmax"):
        assert message(operator, ["bfloat16", "bfloat16"], "310P3")
        assert message(operator, ["bfloat16", "bfloat16"], "910B4") is None
    # Ours: the vendor's sentence names the family there.
    assert message("aten::sin", ["bfloat16"], "310P3") == (
        "Self dtype DT_BFLOAT16 is unsupported by the current SOC version [Ascend310P]."
    )
    assert message("aten::sin", ["bfloat16"], "910A").endswith("[Ascend910].")


@pytest.mark.parametrize(
    ("operator", "dtypes", "parameter"),
    [
        ("aten::mm", ["float32", "float64"], "matB"),
        ("aten::addmm", ["float64", "float32", "float32"], "bias"),
        ("aten::addmm", ["float64", "float64", "float64"], "matA"),
        ("aten::masked_fill_.Scalar", ["float64", "bool"], "selfRef"),
        ("aten::native_layer_norm", ["float32", None, "float64"], "weightOptional"),
        ("aten::where.self", ["bool", "float32", "complex32"], "other"),
    ],
)
def test_the_argument_that_is_named_is_the_first_in_the_vendors_order(operator, dtypes, parameter):
    found = refusals.refusal(operator, dtypes, A2)
    assert found.operand.parameter == parameter
    assert found.message.startswith(f"Tensor {parameter} not implemented for")


def test_a_list_of_tensors_is_looked_at_whole():
    assert "DT_COMPLEX128" in message("aten::cat", [["float32", "complex128"]], "910B3")
    assert message("aten::cat", [["float32", "float64"]], "910B3") is None


def test_operators_in_place_name_their_own_kernel():
    assert refusals.refusal("aten::silu_", ["float64"], A2).kernel == "aclnnSilu"
    assert refusals.refusal("aten::mul_.Tensor", ["complex32", "complex32"], A2).kernel == "aclnnInplaceMul"
    assert refusals.refusal("aten::mul.Tensor", ["complex32", "complex32"], A2).kernel == "aclnnMul"


def test_kernels_that_take_float64_on_the_ai_cpu_are_not_refused():
    for operator in ("aten::add.Tensor", "aten::exp", "aten::cos", "aten::sum.dim_IntList", "aten::index_select"):
        assert refusals.known(operator, A2, "float64")
        assert message(operator, ["float64", "float64"], "910B3") is None


# -- the rules


@pytest.mark.parametrize("chip", OLD, ids=lambda chip: chip.name)
def test_the_first_generations_decide_bfloat16_only(chip):
    refused = {dtype for places in refusals.table(chip).values() for at in places.values() for dtype in at}
    assert refused == {"bfloat16"}
    assert not refusals.known("aten::mm", chip, "float64")
    assert refusals.known("aten::mm", chip, "float16")


@pytest.mark.parametrize("chip", NEW, ids=lambda chip: chip.name)
def test_no_kernel_refuses_float32(chip):
    whole = {"bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "bitwise_left_shift", "bitwise_right_shift"}
    for operator, places in refusals.table(chip).items():
        name = operator.removeprefix("aten::").partition(".")[0].rstrip("_")
        if places.get(0) and name not in {*whole, "bincount"}:
            assert "float32" not in places[0], operator


def test_an_unknown_operator_and_an_unknown_chip_refuse_nothing():
    assert not refusals.known("aten::no_such_operator", A2)
    assert refusals.refusal("aten::no_such_operator", ["float64"], A2) is None
    stranger = chips.Chip(name="990", family="none")
    assert refusals.table(stranger) == {}
    assert refusals.refusal("aten::mm", ["float64"], stranger) is None


def test_an_overload_is_found_by_the_name_of_all():
    assert "aten::expm1.*" in refusals.table(A2)
    for operator in ("aten::expm1", "aten::expm1.out"):
        assert refusals.known(operator, A2)
        assert refusals.refusal(operator, ["float64"], A2).operator == operator


def test_what_two_pages_of_the_vendor_dispute_runs_and_is_not_known():
    assert message("aten::clamp", ["bool"], "910B3") is None
    assert not refusals.known("aten::clamp", A2, "bool")
    assert refusals.known("aten::clamp", A2, "float64")


@given(st.sampled_from(CHIPS), st.sampled_from(sorted(refusals.table(A2))), st.data())
def test_the_table_and_the_answer_agree(chip, key, data):
    operator = key.removesuffix(".*")
    places = refusals.table(chip).get(key, {})
    count = max(places, default=0) + 1
    given_dtypes = [data.draw(st.one_of(st.none(), st.sampled_from(refusals.DTYPES))) for _ in range(count)]
    spelled = [dtype and data.draw(st.sampled_from(["", "torch."])) + dtype for dtype in given_dtypes]
    bad = {place for place, at in places.items() if given_dtypes[place] in at}
    found = refusals.refusal(operator, spelled, chip)
    assert (found is not None) == bool(bad)
    if found:
        assert found.operand.position in bad
        assert found.dtype == given_dtypes[found.operand.position]
        assert found.chip == chip.name
        assert found.source.startswith("https://github.com/")
        assert refusals.known(operator, chip, found.dtype)
        assert found.text.endswith(f"(EZ1001): {found.message}")
        assert not set("{}") & set(found.message)


@given(st.sampled_from(CHIPS), st.sampled_from(refusals.DTYPES))
def test_no_dtype_is_both_listed_and_refused(chip, dtype):
    for row in refusals.rows(chip):
        assert not (dtype in row.refused and dtype in row.supported and row.sentence == refusals.SENTENCE), row.kernel


# -- the data


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_row_is_whole(entry):
    assert set(entry) <= {
        *("operators", "kernel", "inplace", "operands", "supported", "refused", "texts", "disputed", "source", "seen"),
        "dimensions",
    }
    assert entry.get("dimensions", 8) == 8
    assert re.fullmatch(r"aclnn\w+", entry["kernel"])
    assert re.fullmatch(r"\d=\S+( \d=\S+)*", entry["operands"])
    assert entry.get("supported") or entry.get("texts")
    for kind in ("supported", "refused", "texts"):
        families = [short for key in entry.get(kind, {}) for short in key.split()]
        assert len(families) == len(set(families))
        assert set(families) <= set(DATA["families"])
    for names in (*entry.get("supported", {}).values(), *entry.get("refused", {}).values(), entry.get("disputed", "")):
        assert len(set(names.split())) == len(names.split())
        assert set(names.split()) <= set(refusals.VENDOR_NAMES) | VENDOR_ONLY
    repository, _, path = entry["source"].partition("/")
    assert repository in DATA["sources"]
    assert path.endswith(".cpp")
    assert entry.get("seen", "https://").startswith("https://")


def test_dimensions_are_decided_where_all_dtypes_are():
    most = {name: {row.dimensions for row in refusals.rows(chips.get(name))} for name in ("910B3", "950PR", "310P3")}
    assert most == {"910B3": {0, 8}, "950PR": {0, 8}, "310P3": {0}}


def test_no_argument_of_an_operator_is_decided_twice():
    seen = set()
    for entry in DATA["row"]:
        families = {
            short for kind in ("supported", "refused", "texts") for key in entry.get(kind, {}) for short in key.split()
        }
        for operator in entry["operators"].split():
            for operand in entry["operands"].split():
                for short in families:
                    at = (operator, operand.partition("=")[0], short)
                    assert at not in seen, at
                    seen.add(at)
    names = {operator for operator, _, _ in seen}
    for name in names:
        if name.endswith(".*"):
            base = name.removesuffix(".*")
            assert not [other for other in names if other == base or (other.startswith(f"{base}.") and other != name)]


def test_the_families_are_those_of_the_chips():
    assert {table["family"] for table in DATA["families"].values()} == {chip.family for chip in CHIPS}
    for table in DATA["families"].values():
        decided = set(table.get("decided", "").split())
        of_family = [chip for chip in CHIPS if chip.family == table["family"]]
        assert decided == ({"bfloat16"} if of_family[0] in OLD else set())


def test_every_source_is_public_and_dated():
    for source in DATA["sources"].values():
        assert re.fullmatch(r"https://github\.com/[\w-]+/[\w-]+/blob/[0-9a-f]{40}/\S*", source["url"])
        assert source["what"]
        assert source["read"] >= datetime.date(2026, 1, 1)


def test_the_operators_and_their_arguments_are_torchs():
    torch = pytest.importorskip("torch")
    names = {}
    for full in torch._C._dispatch_get_all_op_names():
        names.setdefault(full.partition(".")[0], []).append(full)
    for entry in DATA["row"]:
        for operator in entry["operators"].split():
            if operator == "npu::npu_dtype_cast":  # torch_npu's own
                continue
            base = operator.partition(".")[0]
            overloads = names[base] if operator.endswith(".*") else [operator]
            for full in overloads:
                assert full in names[base], full
                arguments = torch._C._get_schema(base, full.partition(".")[2]).arguments
                if "dimname" in full.lower() or "names" in full.lower():
                    continue
                for operand in entry["operands"].split():
                    position = int(operand.partition("=")[0])
                    kind = arguments[position]
                    assert "Tensor" in str(kind.type) or "ScalarType" in str(kind.real_type), (full, operand)


# -- reading, and the page


def test_nothing_is_read_before_it_is_asked_and_torch_never():
    program = (
        "import sys; from toprope.support import refusals; assert refusals._data.cache_info().currsize == 0; "
        "from toprope import chips; assert refusals.table(chips.get('910B3')); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_the_page_is_in_step_with_the_data(tmp_path):
    page = tmp_path / "refusals.md"
    written = (ROOT / "docs" / "refusals.md").read_text(encoding="utf-8")
    page.write_text(
        written.partition(refusals_page.BEGIN)[0] + refusals_page.BEGIN + refusals_page.END, encoding="utf-8"
    )
    assert refusals_page.main([str(page)]) == 0
    assert page.read_text(encoding="utf-8").strip() == written.strip()


def test_a_page_without_marks_is_left_alone(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("nothing", encoding="utf-8")
    assert refusals_page.main([str(page)]) == 2
    assert page.read_text(encoding="utf-8") == "nothing"
    assert "the page has no" in capsys.readouterr().err
    assert refusals_page.main(["one", "two"]) == 2

"""Files of the vendor's profilers: layouts, what is refused, and the meaning of shapes and formats.

Holds profiler_files.py and vendor_kernels.py in src/toprope/estimate/measured.
"""

import json
from dataclasses import replace

import pytest

from synthetic_profiles import HEADER, OP_SUMMARY, rows, write
from toprope import chips
from toprope.errors import UsageError
from toprope.estimate.cost.costs import cost_of
from toprope.estimate.cost.rates import shipped_rates
from toprope.estimate.measured.profiler_files import read_profile
from toprope.estimate.measured.vendor_kernels import call_of

ROWS = list(rows(shipped_rates(chips.get("910B3")), repeats=1))


@pytest.mark.parametrize(("name", "header"), [("kernel_details.csv", HEADER), ("op_summary_20260411.csv", OP_SUMMARY)])
@pytest.mark.parametrize("folder", ["", "ASCEND_PROFILER_OUTPUT", "mindstudio_profiler_output"])
def test_both_layouts_in_every_folder(tmp_path, name, header, folder):
    if folder.startswith("ASCEND") and name.startswith("op_summary"):
        path = tmp_path / "PROF_1" / "mindstudio_profiler_output"
    else:
        path = tmp_path / folder
    path.mkdir(parents=True, exist_ok=True)
    write(path / name, ROWS, header)
    found = read_profile(tmp_path)
    assert found.rows == tuple(ROWS)
    assert read_profile(path / name).rows == found.rows
    assert (found.file, found.clock, found.idle, found.host_us) == (name, None, None, None)


def test_what_a_folder_says_of_the_host_and_the_chip(tmp_path):
    output = tmp_path / "run_1_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    write(output / "kernel_details.csv", ROWS)
    (output / "step_trace_time.csv").write_text(
        "Device_id,Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free\n"
        "0,1,60,10,0,10,30\n0,2,60,10,0,10,30\n"
    )
    (output / "operator_details.csv").write_text(
        "Name,Input Shapes,Call Stack,Host Self Duration(us),Host Total Duration(us),Device Self Duration(us)\n"
        "aten::add,,,1,21,5\naten::view,,,1,9,0\naten::mul,,,1,25,5\naten::mm,,,1,27,5\n"
    )
    device = output.parent / "PROF_000001" / "device_0"
    device.mkdir(parents=True)
    (device / "info.json.0").write_text(json.dumps({"DeviceInfo": [{"ai_core_num": 20, "aic_frequency": "1800"}]}))
    found = read_profile(tmp_path)
    assert (found.clock, found.idle, found.host_us, found.host_rows) == ((20, 1800), 0.3, 25.0, 3)


def refused(path):
    with pytest.raises(UsageError) as error:
        read_profile(path)
    return str(error.value)


def test_what_is_no_profile(tmp_path):
    assert "there is no" in refused(tmp_path / "nothing")
    assert "no kernel_details.csv" in refused(tmp_path)
    (tmp_path / "op_statistic.csv").write_text("Device_id,OP Type,Core Type,Count,Total Time(us)\n0,Add,AIV,3,9\n")
    assert "sums by type" in refused(tmp_path)
    assert "sums by type" in refused(tmp_path / "op_statistic.csv")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    assert "no table of kernels" in refused(tmp_path / "other.csv")
    (tmp_path / "binary.csv").write_bytes(bytes(range(256)))
    assert "cannot be read" in refused(tmp_path / "binary.csv") or "no table" in refused(tmp_path / "binary.csv")
    (tmp_path / "empty.csv").write_text("")
    assert "no table of kernels" in refused(tmp_path / "empty.csv")
    write(tmp_path / "none.csv", [])
    assert "has no kernels" in refused(tmp_path / "none.csv")
    level0 = tuple(name for name in HEADER if "Shapes" not in name)
    write(tmp_path / "level0.csv", ROWS, level0)
    assert "ProfilerLevel.Level1" in refused(tmp_path / "level0.csv")
    for number in (1, 2):
        (tmp_path / "ranks" / f"rank{number}_ascend_pt").mkdir(parents=True)
    assert "several profiles" in refused(tmp_path / "ranks")


def test_a_simulated_card_is_refused(tmp_path):
    both = (*HEADER, "Block Dim")
    write(tmp_path / "copied.csv", ROWS, both)
    assert "simulated card" in refused(tmp_path / "copied.csv")
    write(tmp_path / "estimates.csv", ROWS, (*HEADER, "Card Duration Estimate Low(us)"))
    assert "simulated card" in refused(tmp_path / "estimates.csv")
    output = tmp_path / "a_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    write(output / "kernel_details.csv", ROWS)
    assert len(read_profile(output).rows) == len(ROWS)
    (output.parent / "profiler_metadata.json").write_text('{"toprope": {"card": "simulated Ascend 910B3"}}')
    assert "simulated card" in refused(output)
    assert "simulated card" in refused(output / "kernel_details.csv")


def test_rows_that_did_not_end_are_left_out(tmp_path):
    write(
        tmp_path / "kernel_details.csv", [ROWS[0], replace(ROWS[1], duration_us="N/A"), replace(ROWS[2], duration_us=0)]
    )
    assert read_profile(tmp_path).rows == (ROWS[0],)


def test_blocked_formats_are_read_as_plain_shapes(tmp_path):
    path = tmp_path / "kernel_details.csv"
    path.write_text(
        "Name,Type,Start Time(us),Duration(us),Input Shapes,Input Data Types,Input Formats,"
        "Output Shapes,Output Data Types,Output Formats\n"
        'a,MatMulV2,1,9,"""512,1024;64,32,16,16""",FLOAT16;FLOAT16,ND;FRACTAL_NZ,"""512,1024""",FLOAT16,ND\n'
        'b,Conv2D,2,9,"""8,4,56,56,16;36,4,16,16""",FLOAT16;FLOAT16,NC1HWC0;FRACTAL_Z,"""8,4,56,56,16""",FLOAT16,NC1HWC0\n'
    )
    matmul, convolution = read_profile(path).rows
    assert matmul.inputs[0] == "512,1024;512,1024"
    assert (convolution.inputs[0], convolution.outputs[0]) == ("", "8,64,56,56")


def call(kind, inputs, outputs):
    dtypes = ";".join(["FLOAT16"] * 4)
    return cost_of(call_of(kind, inputs, dtypes, outputs, dtypes))


def test_a_transposed_first_factor_keeps_the_depth():
    plain = call("MatMulV2", "512,128;128,64", "512,64")
    assert (plain.rows, plain.columns, plain.depth) == (512, 64, 128)
    assert call("MatMulV2", "128,512;128,64", "512,64") == plain
    batched = call("BatchMatMulV2", "8,128,512;8,128,64", "8,512,64")
    assert (batched.rows, batched.depth, batched.products) == (512, 128, 8)


ROW = "2,8,1024,8"


@pytest.mark.parametrize(
    ("inputs", "operations", "head"),
    [
        ("2,8,1024,64;2,8,1024,64;2,8,1024,64", 4 * 2 * 8 * 1024 * 1024 * 64, 64),  # BNSD
        ("2,8,1024,64;2,2,4096,64;2,2,4096,64", 4 * 2 * 8 * 1024 * 4096 * 64, 64),  # heads in groups
        ("2,1024,512;2,1024,512;2,1024,512", 4 * 2 * 8 * 1024 * 1024 * 64, 64),  # BSH
        ("1024,2,512;1024,2,512;1024,2,512", 4 * 2 * 8 * 1024 * 1024 * 64, 64),  # SBH
        ("2,8,1024,64;2,8,1024,64;2,8,1024,64;2048,2048", 2 * 2 * 8 * 1024 * 1024 * 64, 64),  # causal
    ],
)
def test_attention_of_training_is_read_by_its_statistics(inputs, operations, head):
    made = call("FlashAttentionScore", inputs, f"{ROW};{ROW};0;{inputs.split(';')[0]}")
    assert (made.operations, made.rows_of_queries, made.head) == (operations, 2 * 8 * 1024, head)


def test_attention_whose_layout_is_not_known_has_no_work():
    assert call("PromptFlashAttention", "2,1024,512;2,1024,512;2,1024,512", "2,1024,512").operations == 0
    assert call("FlashAttentionScore", "2048,8,64;2048,8,64;2048,8,64", "2048,8,8;2048,8,8;0;2048,8,64").operations == 0
    known = call("PromptFlashAttention", "1,16,5040,64;1,16,5040,64;1,16,5040,64", "1,16,5040,64")
    assert known.operations == 4 * 16 * 5040 * 5040 * 64


def test_a_damaged_row_was_passed_over_in_silence(tmp_path):
    write(tmp_path / "kernel_details.csv", [ROWS[0], replace(ROWS[1], duration_us="abc")])
    with pytest.raises(UsageError, match="is damaged: a row cannot be read"):
        read_profile(tmp_path)

"""`toprope calibrate`: its tables, JSON, the stored file, and what it refuses.

Holds src/toprope/cli/calibrate.py; the profiles are written from known rates (tests/helpers/synthetic_profiles.py).
"""

import json
import re
import subprocess
import sys
from copy import deepcopy

import pytest

from synthetic_profiles import OP_SUMMARY, rows, write
from toprope import chips
from toprope.cli import main
from toprope.estimate.cost.rates import Rates, rates_of, shipped_rates
from toprope.estimate.cost.stored import place

CHIP = chips.get("910B3")


@pytest.fixture
def toprope(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    def call(*words):
        status = main(["calibrate", *map(str, words)])
        seen = capsys.readouterr()
        assert "Traceback" not in seen.err
        return status, seen.out, seen.err

    return call


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    table = deepcopy(shipped_rates(CHIP).table)
    table["products"]["attained"], table["vector"]["gelu"], table["memory"]["attained"] = 0.6, 2.0, 0.5
    path = tmp_path_factory.mktemp("profile") / "op_summary_1.csv"
    write(path, rows(Rates(CHIP, table), repeats=6), OP_SUMMARY)
    return path


def test_a_profile_changes_the_estimates_of_its_chip_until_it_is_forgotten(toprope, profile):
    status, out, err = toprope(profile, "--chip", "910B3")
    assert (status, err) == (0, "")
    assert "kernels of op_summary_1.csv, measured; predictions are estimates" in out
    assert re.search(r"products\.attained +0\.\d+ +0\.(59\d+|6|60\d*) +\d+  durations of kernels", out)
    assert re.search(r"vector\.softmax +[\d.]+ ", out)
    assert re.search(r"Gelu +60 +[\d.]+ ms +0\.\d\d +1\.00", out)
    assert re.search(r"median error \d+\.\d% before, 0\.\d% after", out)
    assert f"stored in {place('910B3')}; toprope calibrate --forget --chip 910B3 removes it" in out
    found = rates_of(CHIP)
    assert found.table["products"]["attained"] == pytest.approx(0.6, rel=0.02)
    assert found.table["vector"]["gelu"] == pytest.approx(2.0, rel=0.02)
    assert found.basis("matmul").startswith("measured on your card (op_summary_1.csv, 20")
    status, out, _ = toprope("--forget", "--chip", "910B3")
    assert (status, out.startswith("removed ")) == (0, True)
    assert rates_of(CHIP).stored is None
    assert "no rates of the 910B3 were stored" in toprope("--forget", "--chip", "Ascend910B3")[1]


def test_json_and_a_file_that_is_stored_elsewhere(toprope, profile, tmp_path):
    file = tmp_path / "mine.toml"
    status, out, _ = toprope(profile, "--chip", "910B3", "--output", file, "--json")
    facts = json.loads(out)
    assert (status, facts["chip"], facts["stored"], facts["file"]) == (0, "910B3", str(file), "op_summary_1.csv")
    figures = {each["name"]: each for each in facts["figures"]}
    assert figures["products.attained"]["after"] == pytest.approx(0.6, rel=0.02)
    assert figures["products.attained"]["fitted"]
    assert facts["error_after"] < 0.01
    assert facts["error_after"] < facts["error_before"]
    gelu = next(each for each in facts["operators"] if each["name"] == "Gelu")
    assert gelu["after"] == pytest.approx(gelu["measured"], rel=0.02)
    assert not place("910B3").exists()
    status, out, _ = toprope(file)
    assert (status, place("910B3").is_file()) == (0, True)
    assert "figures of the 910B3 (measured on your card (op_summary_1.csv, 20" in out
    assert json.loads(toprope("--forget", "--chip", "910B3", "--json")[1])["removed"] == str(place("910B3"))
    assert json.loads(toprope(file, "--json")[1])["stored"] == str(place("910B3"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "there is no PATH"),
        (("{profile}",), "the chip is not known"),
        (("{profile}", "--chip", "910B"), "not one chip but a family"),
        (("{profile}", "--chip", "910B3", "--output", "{tmp}/no/such/file"), "cannot be written"),
        (("{tmp}/nothing", "--chip", "910B3"), "there is no"),
        (("{tmp}", "--chip", "910B3"), "has no kernel_details.csv"),
        (("--forget",), "--forget takes a chip"),
        (("{profile}", "--forget", "--chip", "910B3"), "--forget takes a chip"),
        (("{tmp}/no.toml",), "holds no rates"),
    ],
)
def test_wrong_use_is_one_error(toprope, profile, tmp_path, words, said):
    status, out, err = toprope(*(word.format(profile=profile, tmp=tmp_path) for word in words))
    assert (status, out) == (2, "")
    assert said in err
    assert re.search(r"^  do ", err, re.MULTILINE)


def test_the_chip_is_found_by_its_cores_and_clock_where_only_one_has_them(toprope, profile, tmp_path):
    output = tmp_path / "x_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    write(output / "kernel_details.csv", [])
    (output / "kernel_details.csv").write_bytes(profile.read_bytes())
    device = output.parent / "PROF_1" / "device_0"
    device.mkdir(parents=True)
    info = device / "info.json.0"
    info.write_text(json.dumps({"DeviceInfo": [{"ai_core_num": 20, "aic_frequency": "1800"}]}))
    like = [name for name in chips.names() if (chips.get(name).cube_cores, chips.get(name).cube_mhz) == (20, 1800)]
    status, out, err = toprope(tmp_path)
    if len(like) == 1:
        assert (status, out.startswith("910B3: ")) == (0, True)
    else:
        assert status == 2
        assert f"20 cores of 1800 MHz, as {' or '.join(like)}" in err
    info.write_text(json.dumps({"DeviceInfo": [{"ai_core_num": 7, "aic_frequency": "1800"}]}))
    assert "as no chip that toprope knows" in toprope(tmp_path)[2]
    status, out, _ = toprope(tmp_path, "--chip", "910B3")
    assert status == 0
    assert "info.json: 7 cores of 1800 MHz; toprope's data of the 910B3: 20 of 1800 MHz" in out


PROFILED = """
import torch, torch_npu
config = torch_npu.profiler._ExperimentalConfig(profiler_level=torch_npu.profiler.ProfilerLevel.Level1)
handler = torch_npu.profiler.tensorboard_trace_handler("profile")
with torch_npu.profiler.profile(experimental_config=config, on_trace_ready=handler):
    torch.ones(8, 8, device="npu").relu()
"""


@pytest.mark.native
@pytest.mark.process
def test_what_the_simulated_card_wrote_is_refused(toprope, tmp_path):
    (tmp_path / "program.py").write_text(PROFILED)
    command = [sys.executable, "-m", "toprope", "run", "--quiet", "--chip", "910B3", "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    (file,) = (tmp_path / "profile").rglob("kernel_details.csv")
    copied = tmp_path / "kernel_details.csv"
    copied.write_bytes(file.read_bytes())
    for path in (tmp_path / "profile", file.parent, file, copied):
        status, _, err = toprope(path, "--chip", "910B3")
        assert (status, "was written on a simulated card" in err) == (2, True), path

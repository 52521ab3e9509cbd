"""Facts that the doctor collects: lines of the child process, npu-smi, metadata, the vendor's folders and versions.

Holds `device.doctor.collect`, `torch_probe`, `ratings` and `device.host`. Outputs of npu-smi are recorded ones.
"""

import json
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from toprope.device.doctor.collect import collect_facts
from toprope.device.doctor.diagnosis import diagnose
from toprope.device.doctor.ratings import ratings
from toprope.device.doctor.torch_probe import examination
from toprope.device.host import smi, software, versions
from toprope.device.host.child_process import ended_by
from toprope.device.host.machine import BackendResult, DeviceResult, DtypeResult, Examination, Facts, SmiCard, Step

pytestmark = pytest.mark.process

SAID = [
    {"fact": "doing", "what": "import torch"},
    {"fact": "torch", "version": "2.13.0"},
    {"fact": "backend", "name": "torch_npu", "module": "torch_npu", "error": "ImportError: x"},
    {"fact": "torch_npu", "file": "/x", "error": "ImportError: x"},
    {"fact": "absent", "kind": "npu", "reason": "torch_npu cannot be loaded", "broken": "fix it"},
    {"fact": "absent", "kind": "cuda", "reason": "no CUDA", "broken": ""},
    {"fact": "device", "name": "cpu", "kind": "cpu", "title": "x", "total": 8, "free": 4, "simulated": False},
    {"fact": "dtype", "device": "cpu", "dtype": "float32", "works": True, "failed": "", "milliseconds": 0.3},
    {"fact": "best", "device": "cpu", "dtype": "float32"},
    {"fact": "step", "device": "cpu", "first": 2.0, "last": 1.0, "milliseconds": 3.0},
    {"fact": "choice", "text": "cpu (automatic)"},
    {"fact": "end"},
]  # fmt: skip


def test_what_a_child_says_is_read() -> None:
    found = examination([json.dumps(each) for each in SAID], ended="it ended with exit status 0", import_error="y")
    assert (found.ended, found.doing, found.torch, found.import_error) == ("", "", "2.13.0", "y")
    assert found.backends == (BackendResult("torch_npu", "torch_npu", "ImportError: x"),)
    assert found.absent == {"npu": "torch_npu cannot be loaded", "cuda": "no CUDA"}
    assert found.broken == {"npu": "fix it"}
    assert (found.choice, found.refused) == ("cpu (automatic)", {})
    (cpu,) = found.devices
    assert (cpu.best, cpu.step, cpu.free) == ("float32", Step(2.0, 1.0, 3.0), 4)
    assert cpu.dtypes == (DtypeResult("float32", True, milliseconds=0.3),)


@given(st.integers(0, sum(len(json.dumps(each)) + 1 for each in SAID)))
def test_a_child_that_dies_anywhere_leaves_what_it_said(length: int) -> None:
    said = "".join(json.dumps(each) + "\n" for each in SAID)[:length]
    found = examination(said.splitlines(), ended="it was ended by SIGKILL")
    done = said.rstrip().endswith('{"fact": "end"}')
    assert found.ended == ("" if done else "it was ended by SIGKILL")
    assert diagnose(Facts(packages={"torch": "2.13.0"}, examination=found)) or done


@pytest.mark.slow
@given(st.lists(st.text(max_size=30), max_size=5))
def test_lines_that_are_no_facts_are_passed_over(lines: list[str]) -> None:
    assert examination(lines) == Examination()


def test_how_a_process_ended() -> None:
    assert [ended_by(status) for status in (3, -11, -250)] == [
        "it ended with exit status 3", "it was ended by SIGSEGV", "it was ended by signal 250",
    ]  # fmt: skip


def test_dtypes_are_rated_against_float32() -> None:
    timed = DeviceResult(
        "npu:0",
        "npu",
        dtypes=(
            DtypeResult("float32", True, milliseconds=1.0),
            DtypeResult("float16", True, milliseconds=50.0),
            DtypeResult("float64", True, milliseconds=2.0),
            DtypeResult("bfloat16", False, "matmul", "EZ1001"),
            DtypeResult("complex64", False, "", "the chip has none"),
        ),
    )
    assert [each.text for each in ratings(timed)] == [
        "float32 ok", "float16 slow (50x float32)", "float64 ok", "bfloat16 refused (matmul)",
        "complex64 refused (by the chip)",
    ]  # fmt: skip


def test_the_table_of_versions_is_the_vendors() -> None:
    assert len(versions.pairs()) > 50
    assert (versions.cann_for("2.12.0"), versions.cann_for("2.9.0"), versions.cann_for("2.7.1")) == (
        "9.1.0", "8.5.0", "8.3.RC1",
    )  # fmt: skip
    assert versions.cann_for("2.1.0.post17") == versions.cann_for("2.1.0-post17") == "8.3.RC1"
    assert versions.cann_for("99.0") is None
    assert versions.releases_for("2.9.1+cpu", "8.5.0") == ("2.9.0",)
    assert versions.pythons_for("2.9.0+cpu") == ("3.10", "3.11", "3.12", "3.13")
    assert versions.source().startswith("https://github.com/Ascend/pytorch/")


@given(st.sampled_from(versions.pairs()))
def test_every_row_is_found_by_its_own_versions(row: versions.Pair) -> None:
    assert versions.cann_for(row.torch_npu) is not None
    assert row.torch_npu in versions.releases_for(row.torch, row.cann)
    assert versions.same_cann(row.cann, row.cann)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("8.0.RC1", "8.0.RC1.beta1", True),
        ("8.0.0", "8.0.RC1", False),
        ("9.1.0", "9.1.0-beta.1", True),
        ("8", "8.0", False),
        ("8.0", "8.0.RC1", False),
    ],
)
def test_releases_of_cann(one: str, other: str, same: bool) -> None:
    assert versions.same_cann(one, other) is versions.same_cann(other, one) is same


def test_which_library_belongs_to_what() -> None:
    belongs = {
        "libhccl.so": "CANN", "libascendcl.so": "CANN", "libge_runner.so": "CANN", "libatb.so": "NNAL",
        "libascend_hal.so": "driver", "libascend_protobuf.so": "CANN", "libc.so.6": "",
    }  # fmt: skip
    assert {library: software.package_of(library) for library in belongs} == belongs


def install(root: Path, *files: str) -> None:
    for file in files:
        name, _, content = file.partition(": ")
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)


def test_packages_are_found_where_the_vendor_puts_them(tmp_path: Path) -> None:
    install(
        tmp_path,
        "usr/local/Ascend/ascend-toolkit/set_env.sh: x",
        "usr/local/Ascend/ascend-toolkit/latest/arm-linux/ascend_toolkit_install.info: package_name=A\nversion=8.0.0\n",
        "usr/local/Ascend/nnal/atb/set_env.sh: x",
        "usr/local/Ascend/driver/version.info: Version=24.1.0\nascendhal_version=7\n",
    )
    cann, nnal, driver = software.find(tmp_path, {})
    assert (cann.name, cann.version) == ("CANN", "8.0.0")
    assert cann.set_env == str(tmp_path / "usr/local/Ascend/ascend-toolkit/set_env.sh")
    assert (nnal.name, nnal.version) == ("NNAL", "")
    assert (driver.name, driver.version) == ("driver", "24.1.0")


@pytest.mark.parametrize(
    "layout", ["Ascend/cann/set_env.sh", "Ascend/cann-8.5.0/set_env.sh", "Ascend/ascend-toolkit/set_env.sh"]
)
def test_cann_in_the_users_folder_and_where_a_variable_says(tmp_path: Path, layout: str) -> None:
    install(tmp_path, f"{layout}: x")
    (found,) = software.find(tmp_path / "nothing", {"HOME": str(tmp_path)})
    assert found.set_env == str(tmp_path / layout)
    home = str(tmp_path / "Ascend/ascend-toolkit/latest")
    assert software.find(tmp_path / "nothing", {"ASCEND_HOME_PATH": home}) == (found,)


def test_an_older_cann_tells_its_version_otherwise(tmp_path: Path) -> None:
    install(
        tmp_path,
        "usr/local/Ascend/ascend-toolkit/latest/version.cfg: toolkit_running_version=[7.3.T10.0.B208:8.0.RC1]\n",
    )
    assert software.find(tmp_path, {})[0].version == "8.0.RC1"


SMI = """
+------------------------------------------------------------------------------------------------+
| npu-smi 24.1.rc3                 Version: 24.1.rc3                                             |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     Ascend910           | OK            | 178.8       36                0    / 0             |
| 0     0                   | 0000:9D:00.0  | 0           0    / 0          3397 / 65536         |
+------------------------------------------------------------------------------------------------+
| 0     Ascend910           | Alarm         | -           36                0    / 0             |
| 1     1                   | 0000:9F:00.0  | 0           0    / 0          3186 / 65536         |
+===========================+===============+====================================================+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
| 0       0                 | 6871          | python                   | 61                      |
+---------------------------+---------------+----------------------------------------------------+
"""


def test_npu_smi_is_read() -> None:
    assert smi.parse(SMI) == (
        SmiCard(0, 0, "Ascend910", "OK", 0, 3397, 65536),
        SmiCard(0, 1, "Ascend910", "Alarm", 1, 3186, 65536),
    )


@given(st.text())
def test_any_output_of_npu_smi_can_be_read(output: str) -> None:
    assert isinstance(smi.parse(output), tuple)


def test_gathering_looks_at_another_root_and_starts_nothing_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("a process was started"))
    install(tmp_path, "dev/davinci2: ", "dev/davinci10: ", "dev/davinci_manager: ", "dev/davinci_x: ", ".dockerenv: ")
    variables = {
        "ASCEND_RT_VISIBLE_DEVICES": "0",
        "ASCEBD_RT_VISIBLE_DEVICES": "1",
        "SECRET": "x",
        "ASCEND_HOME_PATH": "/no",
    }
    facts = collect_facts(root=tmp_path, environment=variables, path=[], examining=False)
    assert facts.ascend.cards == (2, 10)
    assert facts.missing_nodes == ("devmm_svm", "hisi_hdc")
    assert facts.ascend.container
    assert facts.broken_paths == {"ASCEND_HOME_PATH": "/no"}
    assert facts.packages == {}
    assert facts.examination is None
    assert "SECRET" not in facts.environment
    assert {"no-torch", "shared-nodes", "misspelt", "environment"} <= {each.name for each in diagnose(facts)}


def test_installed_packages_are_those_in_folders(tmp_path: Path) -> None:
    install(tmp_path, "torch_npu-2.12.0.dist-info/METADATA: Metadata-Version: 2.1\nName: torch_npu\nVersion: 2.12.0\n")
    assert software.installed(("torch-npu", "torch"), [str(tmp_path)]) == {"torch-npu": "2.12.0"}


def test_npu_smi_on_the_path_is_asked(tmp_path: Path) -> None:
    program = tmp_path / "npu-smi"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{SMI}\nEND\n")
    program.chmod(0o755)
    facts = collect_facts(root=tmp_path, environment={"PATH": f"{tmp_path}:/bin:/usr/bin"}, path=[], examining=False)
    assert (facts.npu_smi, len(facts.smi_cards or ())) == (str(program), 2)
    program.write_text("#!/bin/sh\necho dcmi module initialize failed. ret is -8005\nexit 1\n")
    facts = collect_facts(root=tmp_path, environment={"PATH": f"{tmp_path}:/bin:/usr/bin"}, path=[], examining=False)
    assert (facts.smi_cards, facts.npu_smi_error) == (None, "dcmi module initialize failed. ret is -8005")

"""Findings of `toprope doctor`, from facts that are written by hand: no machine, no process. Pure.

Holds `device.doctor.diagnosis`, `mask_checks`, `software_checks`, and their data in device/host.
"""

import json
import re
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from toprope.device.doctor.diagnosis import diagnose
from toprope.device.doctor.software_checks import explain_torch_npu
from toprope.device.host import software
from toprope.device.host.ascend import AscendMachine
from toprope.device.host.machine import (
    BackendResult,
    DeviceResult,
    DtypeResult,
    Examination,
    Facts,
    Package,
    SmiCard,
    Step,
)

pytestmark = pytest.mark.native

ROOT = Path(__file__).resolve().parents[2]
CARD = DeviceResult("npu:0", "npu", "Ascend910B3", 2**36, 2**35, step=Step(2.0, 1.0, 3.0))
CPU = DeviceResult("cpu", "cpu", "a processor", step=Step(2.0, 1.0, 3.0))
WORKS = Facts(
    python="3.11.7",
    packages={"torch": "2.9.0+cpu", "torch-npu": "2.9.0", **dict.fromkeys(software.needed_python()[0], "1.0")}
    | dict.fromkeys(software.needed_python()[1], "1.0"),
    environment={"ASCEND_HOME_PATH": "/usr/local/Ascend/cann", "ASCEND_OPP_PATH": "/usr/local/Ascend/cann/opp"},
    ascend=AscendMachine(cards=(0, 1), manager=True, driver="25.0", cann="8.5.0"),
    software=(Package("CANN", "8.5.0", "/usr/local/Ascend/cann", "/usr/local/Ascend/cann/set_env.sh"),),
    examination=Examination(torch="2.9.0+cpu", import_error="", torch_npu="2.9.0", devices=(CARD, CPU)),
)
"""A machine on which everything is right."""


def names(facts: Facts, *, problems: bool = True) -> list[str]:
    return [finding.name for finding in diagnose(facts) if finding.problem or not problems]


def examined(**changes: object) -> Facts:
    return replace(WORKS, examination=replace(WORKS.examination, **changes))


def test_a_machine_that_works_has_no_findings() -> None:
    assert diagnose(WORKS) == ()


def test_a_machine_without_npu_has_no_problem() -> None:
    plain = Facts(packages={"torch": "2.13.0"}, examination=Examination(torch="2.13.0", devices=(CPU,)))
    assert diagnose(plain) == ()


def test_no_torch() -> None:
    assert names(Facts()) == ["no-torch"]
    broken = Facts(packages={"torch": "2.13.0"}, examination=Examination(torch_error="OSError: libgomp.so.1"))
    assert names(broken) == ["torch-broken"]


LOADERS = {
    "libhccl.so": ("no-cann", "cann-not-loaded", "cann-incomplete"),
    "libascendcl.so": ("no-cann", "cann-not-loaded", "cann-incomplete"),
    "libatb.so": ("no-nnal", "nnal-not-loaded", "nnal-incomplete"),
}


@pytest.mark.parametrize(("library", "wanted"), LOADERS.items())
def test_a_missing_library_not_installed_not_loaded_or_not_whole(library: str, wanted: tuple[str, str, str]) -> None:
    error = f"ImportError: {library}: cannot open shared object file: No such file or directory"
    name = "NNAL" if "atb" in library else "CANN"
    variable = software.variables_of(name)[0]
    there = Facts(software=(Package(name, "8.5.0", "/opt/A", "/opt/A/set_env.sh"),))
    loaded = replace(there, environment={variable: "/opt/A"})
    found = [explain_torch_npu(error, facts) for facts in (Facts(), there, loaded)]
    assert tuple(each.name for each in found) == wanted
    assert all(f"{library} is missing" in each.what for each in found)
    assert found[1].do == ("source /opt/A/set_env.sh",)
    assert "pip uninstall torch-npu" in found[0].do[1]


@pytest.mark.parametrize(
    ("error", "name", "word"),
    [
        (
            "ImportError: libascend_hal.so: cannot open shared object file: x",
            "driver-library",
            "/usr/local/Ascend/driver",
        ),
        ("ImportError: libgomp.so.1: cannot open shared object file: x", "library-missing", "libgomp.so.1"),
        ("ModuleNotFoundError: No module named 'torch_npu._C'", "source-folder", "another folder"),
        ("ImportError: /x/_C.so: undefined symbol: _ZN2at4", "torch-npu-symbols", "torch-npu 2.9.0"),
        ("RuntimeError: Two accelerators cannot be used at the same time in PyTorch", "two-accelerators", "CPU build"),
        ("RuntimeError: error code is 507008", "torch-npu-broken", "toprope doctor 507008"),
        ("ModuleNotFoundError: No module named 'yaml'", "torch-npu-broken", "package that has the module yaml"),
        ("RuntimeError: whatever", "torch-npu-broken", "torch-npu 2.9.0"),
    ],
)
def test_other_reasons_why_torch_npu_cannot_be_loaded(error: str, name: str, word: str) -> None:
    found = explain_torch_npu(error, WORKS)
    assert found.name == name
    assert word in found.what + " ".join(found.do)


def test_a_torch_npu_that_hangs_or_crashes() -> None:
    facts = examined(torch_npu="", devices=(), ended="it was ended by SIGSEGV", doing="import torch_npu")
    assert names(facts) == ["torch-npu-crash"]
    assert "SIGSEGV" in diagnose(facts)[0].what
    elsewhere = examined(devices=(), ended="it did not answer within 60 s", doing="train on npu:0")
    assert names(elsewhere) == ["unfinished"]
    assert "--wait" in diagnose(elsewhere)[0].do[0]


def test_a_torch_npu_that_gives_no_npu_was_said_to_work_and_to_show_no_card() -> None:
    why = "torch_npu cannot count the cards: RuntimeError: error code is 507008"
    facts = examined(devices=(CPU,), absent={"npu": why}, broken={"npu": "check npu-smi info"}, torch_npu_file="/x.py")
    assert names(facts) == ["torch-npu-broken"]
    found = diagnose(facts)[0]
    assert found.what == f"torch_npu can be imported, and yet there is no NPU: {why}."
    assert found.do == ("toprope doctor 507008", "check npu-smi info")
    assert found.looked_at.startswith("/x.py, CANN 8.5.0")


def test_torch_npu_is_not_installed_where_there_are_cards() -> None:
    packages = {name: version for name, version in WORKS.packages.items() if name != "torch-npu"}
    facts = replace(examined(torch_npu="", devices=(CPU,)), packages=packages)
    found = diagnose(facts)[0]
    assert (found.name, found.problem) == ("no-torch-npu", True)
    assert found.do == ("pip install 'torch-npu==2.9.0'",)  # the row for torch 2.9 and CANN 8.5.0
    without_cards = replace(facts, ascend=AscendMachine())
    assert [(each.name, each.problem) for each in diagnose(without_cards)] == [("no-torch-npu", False)]


def test_cards_that_may_not_be_opened() -> None:
    refused = AscendMachine(cards=(0, 10), refused=(0, 10), owner="HwHiAiUser:HwHiAiUser", manager=True, driver="25.0")
    facts = replace(examined(devices=(CPU,), absent={"npu": "no card"}), ascend=refused)
    assert names(facts) == ["no-card", "permission"]
    permission = diagnose(facts)[1]
    assert "/dev/davinci0, /dev/davinci10" in permission.what
    assert "you are not in that group" in permission.what
    assert permission.do[0].startswith("usermod -aG HwHiAiUser")
    member = diagnose(replace(facts, groups=("HwHiAiUser",)))[1]
    assert "mode does not let the group in" in member.what


def test_device_files_that_all_cards_need() -> None:
    missing = replace(WORKS, missing_nodes=("devmm_svm", "hisi_hdc"))
    assert names(missing) == ["shared-nodes"]
    assert "driver" in diagnose(missing)[0].do[0]
    inside = replace(missing, ascend=replace(WORKS.ascend, container=True))
    assert diagnose(inside)[0].do == ("start the container with --device /dev/devmm_svm --device /dev/hisi_hdc",)


def test_the_driver_must_be_mounted_where_no_card_works() -> None:
    inside = replace(WORKS, ascend=replace(WORKS.ascend, container=True, driver=""))
    assert (names(inside), names(inside, problems=False)) == ([], ["driver-not-mounted"])
    blind = replace(inside, examination=replace(WORKS.examination, devices=(CPU,)))
    assert names(blind) == ["driver-not-mounted"]


@pytest.mark.parametrize(
    ("torch", "torch_npu", "cann", "wanted"),
    [
        ("2.9.0", "2.9.0", "8.5.0", []),
        ("2.9.1+cpu", "2.9.0", "8.5.0", []),
        ("2.12.0", "2.12.0", "9.1.0", []),
        ("2.7.1", "2.7.1", "8.3.RC1", []),
        ("2.7.1", "2.7.1", "8.3.RC1.beta1", []),
        ("2.13.0", "2.12.0", "9.1.0", ["torch-skew"]),
        ("2.1.0", "2.10.0.post4", "9.1.0", ["torch-skew"]),
        ("2.9.0", "2.9.0", "8.3.RC1", ["cann-skew"]),
        ("2.9.0", "2.9.0.post6", "8.5.0", ["cann-skew"]),
        ("2.13.0", "2.13.0", "9.1.0", ["not-in-table"]),
    ],
)
def test_pairs_of_versions(torch: str, torch_npu: str, cann: str, wanted: list[str]) -> None:
    facts = replace(
        examined(torch=torch, devices=(CPU,)),
        packages={**WORKS.packages, "torch": torch, "torch-npu": torch_npu},
        software=(Package("CANN", cann, "/x", "/x/set_env.sh"),),
    )
    about_versions = {"torch-skew", "cann-skew", "not-in-table"}
    found = [finding for finding in diagnose(facts) if finding.name in about_versions]
    assert [each.name for each in found] == wanted
    assert [each.problem for each in found] == [name != "not-in-table" for name in wanted]


def test_a_pair_outside_of_the_table_that_works_is_no_problem() -> None:
    facts = replace(WORKS, software=(Package("CANN", "9.0.0", "/x", "/x/set_env.sh"),))
    assert (names(facts), names(facts, problems=False)) == ([], ["cann-skew"])


def test_a_python_that_torch_npu_is_not_built_for() -> None:
    facts = replace(WORKS, python="3.14.0")
    assert (names(facts), names(facts, problems=False)) == ([], ["python-skew"])


def test_variables_of_cann_that_lead_nowhere() -> None:
    gone = replace(WORKS, broken_paths={"ASCEND_HOME_PATH": "/old"})
    assert names(gone) == ["environment"]
    assert diagnose(gone)[0].do == ("source /usr/local/Ascend/cann/set_env.sh in a fresh shell",)
    half = replace(WORKS, environment={"ASCEND_HOME_PATH": "/usr/local/Ascend/cann"})
    assert names(half) == ["environment"]
    assert "ASCEND_OPP_PATH" in diagnose(half)[0].what


def test_what_npu_smi_says() -> None:
    sick = replace(WORKS, smi_cards=(SmiCard(3, 0, "910B3", "Alarm"), SmiCard(4, 0, "910B3", "OK")))
    assert names(sick) == ["health"]
    assert "card 3 (910B3) 'Alarm'" in diagnose(sick)[0].what
    silent = replace(WORKS, npu_smi_error="dcmi module initialize failed. ret is -8005")
    assert (names(silent), names(silent, problems=False)) == ([], ["npu-smi"])


def test_devices_that_fail_at_simple_things() -> None:
    refused = DtypeResult("float32", False, "matmul", "RuntimeError: EZ9999: Inner Error! error code is 507015")
    for device, word in [
        (replace(CARD, error="RuntimeError: error code is 507033"), "507033"),
        (replace(CARD, dtypes=(refused,)), "507015"),
        (replace(CARD, step=Step(error="RuntimeError: error code is 207001")), "207001"),
        (replace(CARD, step=Step(1.0, 1.0)), "loss 1 before, 1 after"),
    ]:
        found = diagnose(examined(devices=(device, CPU)))
        assert [each.name for each in found] == ["device-fails"]
        assert word in found[0].what + " ".join(found[0].do)


def test_autoload_switched_off_is_worth_a_note() -> None:
    facts = replace(WORKS, environment={**WORKS.environment, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    assert (names(facts), names(facts, problems=False)) == ([], ["autoload-off"])


def test_the_cause_of_a_broken_import_came_after_it() -> None:
    sick = BackendResult("toprope", "toprope", "CardError: there is no chip 'bogus'. looked at the chips")
    facts = examined(torch_npu="", torch_npu_file="", devices=(CPU,), backends=(sick,), import_error="RuntimeError: x")
    facts = replace(facts, packages={"torch": "2.9.0"}, ascend=AscendMachine(), software=(), environment={})
    assert names(facts) == ["simulated-card", "import-torch"]
    assert diagnose(facts)[0].what.endswith("cannot be installed: there is no chip 'bogus'.")
    assert diagnose(facts)[0].do[0].startswith("correct TOPROPE_SIM")


def test_a_setting_that_no_program_can_have_was_no_finding() -> None:
    refused = {"what": "there is no npu: torch_npu is not installed.", "looked_at": "asked for by x", "do": "use cpu"}
    found = diagnose(examined(refused=refused))
    assert [(each.name, each.do, each.looked_at) for each in found] == [("setting", ("use cpu",), "asked for by x")]
    assert refused["what"] in found[0].what


def test_a_simulated_card_next_to_an_installed_torch_npu() -> None:
    facts = replace(
        Facts(packages={"torch": "2.13.0", "torch-npu": "2.12.0"}, environment={"TOPROPE_SIM": "910B3x2"}),
        examination=Examination(torch="2.13.0", facade=True, devices=(replace(CARD, simulated=True), CPU)),
    )
    assert facts.simulated
    assert (names(facts), names(facts, problems=False)) == ([], ["torch-npu-aside"])


text = st.text(max_size=20)
numbers = st.lists(st.integers(0, 63), max_size=4).map(lambda each: tuple(sorted(set(each))))
version = st.sampled_from(["", "2.9.0", "2.13.0+cpu", "2.1.0.post4", "not a version", "8.5.0"])
timed = st.none() | st.floats()
device = st.builds(
    DeviceResult, st.just("npu:0"), st.sampled_from(["npu", "cpu", "cuda"]), text, error=text, simulated=st.booleans(),
    dtypes=st.lists(
        st.builds(DtypeResult, st.sampled_from(["float32", "float16"]), st.booleans(), text, text, timed), max_size=2
    ).map(tuple),
    step=st.none() | st.builds(Step, st.floats(), st.floats(), st.floats(), text),
)  # fmt: skip
any_facts = st.builds(
    Facts,
    python=st.sampled_from(["3.11.7", "3.8.1", ""]),
    packages=st.dictionaries(st.sampled_from(["torch", "torch-npu", "numpy", "decorator"]), version),
    environment=st.dictionaries(
        st.sampled_from(["ASCEND_RT_VISIBLE_DEVICES", "ASCEND_VISIBLE_DEVICES", "ASCEND_HOME_PATH", "TOPROPE_SIM",
                         "ASCEND_RT_VISBLE_DEVICES", "TORCH_DEVICE_BACKEND_AUTOLOAD"]),
        text | st.sampled_from(["0", "1,0", "0,1,2,5", "4-7", "910B3x8"]),
    ),
    ascend=st.builds(AscendMachine, numbers, numbers, text, st.booleans(), text, text, text, st.booleans()),
    missing_nodes=st.lists(text, max_size=2).map(tuple),
    software=st.lists(st.builds(Package, st.sampled_from(["CANN", "NNAL"]), version, text, text), max_size=2)
    .map(tuple),
    npu_smi_error=text,
    smi_cards=st.none() | st.lists(st.builds(SmiCard, st.integers(0, 7), st.integers(0, 1), text, text), max_size=2),
    examination=st.none()
    | st.builds(
        Examination, text, text, version, text, st.none() | text,
        st.lists(st.builds(BackendResult, text, text, text), max_size=2).map(tuple),
        version, text | st.just("ImportError: libhccl.so: cannot open shared object file"), text, st.booleans(),
        st.dictionaries(st.sampled_from(["npu", "cuda"]), text), st.lists(device, max_size=2).map(tuple),
        st.just({}) | st.fixed_dictionaries({"npu": text}),
        text, st.just({}) | st.fixed_dictionaries({"what": text, "looked_at": text, "do": text}),
    ),
)  # fmt: skip


@pytest.mark.soak
@given(any_facts)
def test_any_facts_can_be_reasoned_about(facts: Facts) -> None:
    from toprope.cli.output import doctor_text
    from toprope.terminal import render

    found = diagnose(facts)
    assert diagnose(facts) == found
    for finding in found:
        assert finding.name
        assert finding.what
        assert finding.do or not finding.problem
    shown = render(doctor_text.report(facts, found))
    problems = [each for each in found if each.problem]
    assert shown.splitlines()[-1].startswith(str(len(problems) or "no"))
    assert json.loads(json.dumps(doctor_text.as_dict(facts, found)))["problems"] == len(problems)
    assert render(doctor_text.devices_text(facts, found))
    json.dumps(doctor_text.devices_as_dict(facts, found))


def test_every_finding_is_on_the_page() -> None:
    page = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src/toprope/device/doctor").glob("*.py"))
    named = set(re.findall(r'Finding\(\s*"([a-z-]+)"', source)) | {"no-cann", "cann-not-loaded", "nnal-incomplete"}
    assert len(named) > 25
    assert sorted(name for name in named if f"`{name}`" not in page) == []

"""One test for each public thread that `toprope doctor` answers, named for it; numbered as in test_device_threads.

Stub packages on PYTHONPATH stand for a torch_npu that is broken; the torch is the real one, in child processes.

Holds `device.doctor` and `toprope.codes`; the measure is the thread that each test's docstring names.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from toprope.codes import explain, in_text
from toprope.device.doctor.collect import collect_facts
from toprope.device.doctor.diagnosis import diagnose
from toprope.device.host import smi
from toprope.device.host.ascend import AscendMachine
from toprope.device.host.machine import DeviceResult, Examination, Facts, Package, SmiCard

pytestmark = [pytest.mark.native, pytest.mark.process]

MISSING = "raise ImportError('{}: cannot open shared object file: No such file or directory')"


def install(folder: Path, name: str, version: str, code: str = "", entry_point: str = "") -> None:
    """A package in a folder, as pip would leave it."""
    module = name.replace("-", "_")
    (folder / module).mkdir(parents=True)
    (folder / module / "__init__.py").write_text(code)
    info = folder / f"{module}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if entry_point:
        (info / "entry_points.txt").write_text(f"[torch.backends]\n{entry_point}\n")


@pytest.fixture
def doctor(tmp_path: Path) -> Callable[..., tuple[int, Mapping[str, Any]]]:
    """A function that runs `toprope VERB --json` with variables, in a home folder of its own."""

    def run(*words: str, **variables: str) -> tuple[int, Mapping[str, Any]]:
        environment = {**os.environ, "HOME": str(tmp_path / "home"), "TOPROPE_CACHE_DIR": cache(), **variables}
        done = subprocess.run(
            [sys.executable, "-m", "toprope", *(words or ("doctor",)), "--json"],
            env=environment, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.stderr == ""
        return done.returncode, json.loads(done.stdout)

    return run


def cache() -> str:
    """The cache of this machine: a home folder of its own must not compile the simulated card again."""
    from toprope.settings import Settings

    return str(Settings.load().cache_dir)


def problems(answer: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {each["name"]: each for each in answer["findings"] if each["problem"]}


@pytest.mark.slow
def test_thread_1_libhccl_is_missing_because_canns_environment_is_not_loaded(doctor, tmp_path: Path) -> None:
    """https://github.com/vllm-project/vllm-ascend/issues/262: "Failed to infer device type"."""
    install(tmp_path / "site", "torch-npu", "2.13.0", MISSING.format("libhccl.so"), "torch_npu = torch_npu:_autoload")
    set_env = tmp_path / "home/Ascend/ascend-toolkit/set_env.sh"
    set_env.parent.mkdir(parents=True)
    set_env.touch()
    status, answer = doctor(PYTHONPATH=str(tmp_path / "site"))
    assert status == 1
    found = problems(answer)
    assert {"cann-not-loaded", "import-torch"} <= set(found)
    assert "libhccl.so is missing" in found["cann-not-loaded"]["what"]
    assert found["cann-not-loaded"]["do"] == [f"source {set_env}"]
    assert "Failed to load the backend extension: torch_npu" in found["import-torch"]["looked_at"]
    assert found["import-torch"]["do"] == ["until it is fixed: export TORCH_DEVICE_BACKEND_AUTOLOAD=0"]
    assert [each.code for each in in_text("RuntimeError: Failed to infer device type")] == ["infer-device"]


@pytest.mark.slow
def test_thread_2_libatb_is_missing_because_nnal_is_a_package_of_its_own(doctor, tmp_path: Path) -> None:
    """https://github.com/vllm-project/vllm-ascend/issues/152: other library, other advice."""
    install(tmp_path / "site", "torch-npu", "2.13.0", MISSING.format("libatb.so"))
    set_env = tmp_path / "home/Ascend/nnal/atb/set_env.sh"
    set_env.parent.mkdir(parents=True)
    set_env.touch()
    status, answer = doctor(PYTHONPATH=str(tmp_path / "site"))
    assert status == 1
    found = problems(answer)
    assert "libatb.so is missing" in found["nnal-not-loaded"]["what"]
    assert found["nnal-not-loaded"]["do"] == [f"source {set_env}"]
    assert "import-torch" not in found  # without an entry point, `import torch` does not load it


def test_thread_3_python_packages_that_cann_imports(tmp_path: Path) -> None:
    """https://github.com/Ascend/pytorch/issues/7: EH9999 and a core dump where decorator, scipy, ... are missing."""
    set_env = tmp_path / "usr/local/Ascend/ascend-toolkit/set_env.sh"
    set_env.parent.mkdir(parents=True)
    set_env.touch()
    install(tmp_path / "site", "scipy", "1.13.0")
    facts = collect_facts(root=tmp_path, environment={}, path=[str(tmp_path / "site")], examining=False)
    (found,) = [each for each in diagnose(facts) if each.name == "python-packages"]
    assert found.do == ("pip install attrs decorator numpy psutil pyyaml",)
    assert found.problem
    assert "EH9999" in found.what
    assert "decorator" in explain("EH9999").causes[0]


def test_thread_4_torch_npu_of_another_release_than_cann_wants(tmp_path: Path) -> None:
    """https://github.com/Ascend/pytorch/issues/37: torchair has no attribute 'get_npu_backend'."""
    install(tmp_path, "torch", "2.1.0")
    install(tmp_path, "torch-npu", "2.1.0")
    facts = collect_facts(root=tmp_path / "root", environment={}, path=[str(tmp_path)], examining=False)
    error = "AttributeError: module 'torch_npu.dynamo.torchair' has no attribute 'get_npu_backend'"
    facts = replace(
        facts,
        software=(Package("CANN", "8.0.RC1", "/x", "/x/set_env.sh"),),
        examination=Examination(torch="2.1.0", torch_npu_error=error),
    )
    found = {each.name: each for each in diagnose(facts)}
    advice = "for torch 2.1.0 and CANN 8.0.RC1 install torch-npu 2.1.0.post4"
    assert "torch_npu 2.1.0 is made for CANN 7.0.0, and CANN 8.0.RC1 is installed" in found["cann-skew"].what
    assert advice in found["cann-skew"].do
    assert advice in found["torchair"].do
    assert [each.code for each in in_text(error)] == ["torchair"]


@pytest.mark.slow
def test_thread_6_a_backend_that_raises_ends_import_torch(doctor, tmp_path: Path) -> None:
    """https://github.com/flagos-ai/FlagTree/issues/1024: "Failed to load the backend extension"."""
    # the variable is off for the import of torch alone: the backend must find it as the user left it
    code = (
        "import os\ndef load():\n    raise RuntimeError('too early', os.environ.get('TORCH_DEVICE_BACKEND_AUTOLOAD'))\n"
    )
    install(tmp_path, "sick", "1.0", code, "sick = sick:load")
    status, answer = doctor(PYTHONPATH=str(tmp_path))
    assert status == 1
    found = problems(answer)
    assert "RuntimeError: ('too early', None)" in found["backend-broken"]["what"]
    assert "`import torch` itself fails while sick is like this" in found["import-torch"]["what"]
    assert [each["name"] for each in answer["facts"]["examination"]["devices"]] == ["cpu"]


@pytest.mark.slow
def test_thread_7_torch_does_not_know_the_name_npu(doctor) -> None:
    """https://github.com/pytorch/pytorch/issues/180712: twenty device types, and no reason."""
    done = subprocess.run(
        [sys.executable, "-c", "import torch; torch.device('npu')"], capture_output=True, text=True, timeout=120
    )
    message = done.stderr.splitlines()[-1]
    assert "device type at start of device string: npu" in message
    _, answer = doctor("doctor", message)
    assert [each["code"] for each in answer] == ["unknown-device"]
    assert "torch_npu is not installed, or was not loaded" in answer[0]["means"]
    status, answer = doctor()
    assert (status, answer["facts"]["examination"]["absent"]["npu"]) == (0, "torch_npu is not installed")


LOADED = Examination(torch="2.9.0", import_error="", torch_npu="2.9.0", absent={"npu": "no card"})


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        (AscendMachine(), ("/dev/davinci*", "driver", "npu-smi")),
        (AscendMachine(container=True), ("/dev/davinci*", "container", "--device", "/dev/davinci_manager")),
        (AscendMachine(cards=(0, 10), refused=(0, 10), owner="HwHiAiUser:HwHiAiUser", manager=True),
         ("/dev/davinci0, /dev/davinci10", "HwHiAiUser")),
        (AscendMachine(cards=(0,), driver="25.0"), ("/dev/davinci_manager", "driver")),
    ],
)  # fmt: skip
def test_thread_8_no_card_is_visible_and_the_message_says_why(machine: AscendMachine, words: tuple[str, ...]) -> None:
    """https://github.com/vllm-project/vllm-ascend/issues/14631: a bare AssertionError with 0 visible devices."""
    facts = Facts(packages={"torch": "2.9.0", "torch-npu": "2.9.0"}, ascend=machine, examination=LOADED)
    found = next(each for each in diagnose(facts) if each.name == "no-card")
    told = " ".join((found.what, *found.do, found.looked_at))
    assert [word for word in words if word not in told] == []
    bare = "local_world_size (8) must be less than or equal to the number of visible devices (0)."
    assert [each.code for each in in_text(bare)] == ["no-visible-device"]


@pytest.mark.slow
def test_thread_8_end_to_end_with_a_torch_npu_that_sees_nothing(doctor, tmp_path: Path) -> None:
    """https://github.com/vllm-project/vllm-ascend/issues/14631"""
    code = (
        "import torch, types\ntorch.npu = types.ModuleType('torch_npu.npu')\n"
        "torch.npu.is_available, torch.npu.device_count = lambda: False, lambda: 0\n"
    )
    install(tmp_path / "site", "torch-npu", "2.13.0", code)
    status, answer = doctor("devices", PYTHONPATH=str(tmp_path / "site"))
    assert status == 1
    assert "torch_npu works and shows no card" in problems(answer)["no-card"]["what"]
    assert "/dev/davinci*" in problems(answer)["no-card"]["what"]
    assert "no card is visible" in answer["absent"]["npu"]


@pytest.mark.slow
def test_doctor_and_the_error_of_a_torch_npu_that_gives_no_npu_contradicted_each_other(doctor, tmp_path: Path) -> None:
    install(tmp_path / "site", "torch-npu", "2.13.0")
    status, answer = doctor("devices", PYTHONPATH=str(tmp_path / "site"))
    assert (status, answer["absent"]["npu"]) == (1, "torch_npu 2.13.0 was imported, but gives torch no npu")
    found = problems(answer)
    assert set(found) == {"torch-npu-broken"}
    assert answer["absent"]["npu"] in found["torch-npu-broken"]["what"]
    assert found["torch-npu-broken"]["looked_at"].startswith(str(tmp_path / "site/torch_npu/__init__.py"))


@pytest.mark.slow
def test_thread_9_a_mask_that_falls_shows_no_card(doctor) -> None:
    """https://github.com/agentscope-ai/Trinity-RFT/pull/618: is_available() is silently False."""
    status, answer = doctor("devices", TOPROPE_SIM="910B3x2", ASCEND_RT_VISIBLE_DEVICES="1,0")
    assert status == 1
    found = problems(answer)["mask"]
    assert "ASCEND_RT_VISIBLE_DEVICES=1,0 shows no card: numbers must rise, and 0 follows 1" in found["what"]
    assert found["do"][0].startswith("export ASCEND_RT_VISIBLE_DEVICES=0,1,")
    real = Facts(
        packages={"torch": "2.9.0", "torch-npu": "2.9.0"}, environment={"ASCEND_RT_VISIBLE_DEVICES": "1,0"},
        ascend=AscendMachine(cards=(0, 1), manager=True, driver="25.0", mask="1,0"), examination=LOADED,
    )  # fmt: skip
    assert [each.name for each in diagnose(real)][:2] == ["mask", "no-card"]


@pytest.mark.slow
def test_thread_11_a_mask_with_a_gap_and_the_numbers_of_its_cards(doctor) -> None:
    """https://github.com/vllm-project/vllm-ascend/issues/449: mask 0,1,2,5, and "Invalid device id" for 5."""
    status, answer = doctor("devices", TOPROPE_SIM="910B3x8", ASCEND_RT_VISIBLE_DEVICES="0,1,2,5")
    cards = {each["device"]: each["card"] for each in answer["devices"] if each["kind"] == "npu"}
    assert (status, cards) == (0, {"npu:0": 0, "npu:1": 1, "npu:2": 2, "npu:3": 5})
    assert all(each["simulated"] for each in answer["devices"] if each["kind"] == "npu")
    assert [each.code for each in in_text("AssertionError: Invalid device id")] == ["invalid-device-id"]


CONTAINER = AscendMachine(cards=(3, 4), manager=True, driver="25.0", container=True)


@pytest.mark.parametrize(
    ("machine", "variables", "wanted", "advice"),
    [
        # granted and here, no mask for CANN: it counts from 0
        (CONTAINER, {"ASCEND_VISIBLE_DEVICES": "4,3"}, "granted-numbers", "export ASCEND_RT_VISIBLE_DEVICES=3,4"),
        # a privileged container has every card of the machine
        (replace(CONTAINER, cards=tuple(range(8))), {"ASCEND_VISIBLE_DEVICES": "4,3"}, "more-than-granted",
         "export ASCEND_RT_VISIBLE_DEVICES=3,4"),
        (replace(CONTAINER, cards=tuple(range(8))), {"ASCEND_VISIBLE_DEVICES": "4,3", "ASCEND_RT_VISIBLE_DEVICES": "0"},
         "more-than-granted", "export ASCEND_RT_VISIBLE_DEVICES=3,4"),
        # the variable alone brings no card in
        (replace(CONTAINER, cards=()), {"ASCEND_VISIBLE_DEVICES": "3-4"}, "granted-not-here", "--runtime ascend"),
        # the machine's numbers in the mask, in a container that counts from 0
        (CONTAINER, {"ASCEND_VISIBLE_DEVICES": "3,4", "ASCEND_RT_VISIBLE_DEVICES": "3,4"}, "mask",
         "export ASCEND_RT_VISIBLE_DEVICES=0,1"),
        # outside of a container nothing reads it
        (replace(CONTAINER, container=False), {"ASCEND_VISIBLE_DEVICES": "1"}, "container-mask",
         "export ASCEND_RT_VISIBLE_DEVICES=1"),
        (CONTAINER, {"ASCEND_RT_VISBLE_DEVICES": "3"}, "misspelt", "did you mean ASCEND_RT_VISIBLE_DEVICES?"),
    ],
)  # fmt: skip
def test_thread_12_the_variable_of_the_container_and_the_variable_of_cann(
    machine: AscendMachine, variables: dict[str, str], wanted: str, advice: str
) -> None:
    """https://github.com/Project-HAMi/HAMi/issues/1894: a card is opened that was never granted, 507033."""
    facts = Facts(
        packages={"torch": "2.9.0", "torch-npu": "2.9.0"}, environment=variables, ascend=machine, examination=LOADED
    )
    found = {each.name: each for each in diagnose(facts)}
    assert found[wanted].problem
    assert advice in " ".join(found[wanted].do)
    assert "ASCEND_VISIBLE_DEVICES" in explain("507033").causes[1]


@pytest.mark.parametrize(
    "variables",
    [{}, {"ASCEND_RT_VISIBLE_DEVICES": "0,1"}, {"ASCEND_VISIBLE_DEVICES": "3,4", "ASCEND_RT_VISIBLE_DEVICES": "0,1"}],
)
def test_thread_12_masks_that_are_right_are_no_finding(variables: dict[str, str]) -> None:
    """https://github.com/Project-HAMi/HAMi/issues/1894"""
    facts = Facts(
        python="3.11.7", packages={"torch": "2.9.0", "torch-npu": "2.9.0"}, environment=variables, ascend=CONTAINER,
        examination=replace(LOADED, absent={}, devices=(DeviceResult("npu:0", "npu"), DeviceResult("npu:1", "npu"))),
    )  # fmt: skip
    assert diagnose(facts) == ()


ONE_CARD_NUMBER_1 = """
+------------------------------------------------------------------------------------------------------------------+
| npu-smi 26.0.rc1                            Version: 26.0.rc1                                                    |
+---------------------------+---------------+----------------------------------------------------------------------+
| NPU   Name                | Health        | Power(W)             Temp(C)                 Hugepages-Usage(page)   |
| Chip                      | Bus-Id        | AICore(%)            Memory-Usage(MB)        HBM-Usage(MB)           |
+===========================+===============+======================================================================+
| {number:<5} 910B3               | OK            | 83.5                 38                      0    / 0            |
| 0                         | 0000:08:00.0  | 0                    0    / 0                18049/ 65536            |
+===========================+===============+======================================================================+
+---------------------------+---------------+----------------------------------------------------------------------+
| NPU     Chip              | Process id    | Process name       | Process memory(MB)    | Process id in container |
"""


@pytest.mark.parametrize("number", [0, 1, 7, 12])
def test_thread_13_npu_smi_lists_cards_of_any_number(number: int) -> None:
    """https://github.com/verl-project/verl/issues/6756: a parser that wants card 1."""
    assert smi.parse(ONE_CARD_NUMBER_1.format(number=number)) == (
        SmiCard(number, 0, "910B3", "OK", None, 18049, 65536),
    )


@pytest.mark.slow
def test_thread_17_no_bfloat16_on_an_older_chip(doctor) -> None:
    """https://github.com/hiyouga/LlamaFactory/issues/4165, https://github.com/vllm-project/vllm-ascend/issues/6490"""
    status, answer = doctor(TOPROPE_SIM="310P3")
    assert (status, answer["simulated"]) == (0, True)
    assert answer["dtypes"]["npu:0"] == {
        "float32": "ok", "bfloat16": "refused", "float16": "ok", "float64": answer["dtypes"]["npu:0"]["float64"],
    }  # fmt: skip
    (card,) = [each for each in answer["facts"]["examination"]["devices"] if each["kind"] == "npu"]
    assert card["best"] == "float16"
    assert "910A and 310P use float16" in explain("EZ1001").try_[0]


def test_thread_41_a_mask_that_was_changed_after_the_first_use(doctor) -> None:
    """https://github.com/Ascend/pytorch/issues/67: 507033, ERR00100, EL0003."""
    message = (
        "c10_npu::SetDevice(device_id_), error code is 507033\n"
        "[ERROR] 2025-06-24-11:20:49 (PID:528886, Device:-1, RankID:-1) ERR00100 PTA call acl api failed\n"
        "EL0003: [PID: 528886] 2025-06-24-11:20:41.662.506 The argument is invalid."
    )
    status, answer = doctor("doctor", message)
    assert (status, [each["code"] for each in answer]) == (0, ["507033", "ERR00100", "EL0003"])
    assert "was changed after the process first touched a card" in answer[0]["causes"][0]
    assert "set the mask before Python starts" in answer[0]["try"][0]
    assert any(source["url"].endswith("/pytorch/issues/67") for source in answer[0]["sources"])

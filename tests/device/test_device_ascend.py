"""Facts about a machine with Ascend cards, from files and variables: on folders that are laid out like one.

Holds `device.host.ascend` and `device.host.libraries`. The layouts follow the vendor's installers and public threads.
"""

import os
from pathlib import Path

import pytest

from toprope.device.host.ascend import AscendMachine, look_at_machine, mask_text
from toprope.device.host.libraries import advice, missing_library, reason

CANN = "usr/local/Ascend/ascend-toolkit/latest"


def machine(root: Path, *nodes: str, **variables: str) -> AscendMachine:
    """A machine with these device files, a driver, and CANN."""
    (root / "dev").mkdir(parents=True, exist_ok=True)
    for node in nodes:
        (root / "dev" / node).touch()
    (root / CANN / "x86_64-linux").mkdir(parents=True, exist_ok=True)
    (root / CANN / "x86_64-linux" / "ascend_toolkit_install.info").write_text(
        "package_name=x\nversion=8.5.0\narch=x86_64\n"
    )
    (root / "usr/local/Ascend/driver").mkdir(exist_ok=True)
    (root / "usr/local/Ascend/driver/version.info").write_text("Version=25.0.rc1\nascendhal_version=7\n")
    return look_at_machine(root, variables)


def test_a_machine_with_everything(tmp_path):
    home = str(tmp_path / CANN)
    found = machine(tmp_path, "davinci0", "davinci1", "davinci10", "davinci_manager", ASCEND_HOME_PATH=home)
    assert found == AscendMachine(
        cards=(0, 1, 10), manager=True, driver="25.0.rc1", cann="8.5.0", cann_folder=home
    )  # fmt: skip
    assert found.text == "CANN 8.5.0, driver 25.0.rc1, /dev/davinci0, /dev/davinci1, /dev/davinci10"


def test_ten_cards_and_more_are_seen(tmp_path):
    found = machine(tmp_path, *(f"davinci{number}" for number in range(16)), "davinci_manager")
    assert found.cards == tuple(range(16))


def test_a_machine_with_nothing(tmp_path):
    found = look_at_machine(tmp_path / "nothing", {})
    assert found == AscendMachine()
    assert found.text == "no CANN, no driver, no /dev/davinci*"


def test_cann_without_its_environment(tmp_path):
    found = machine(tmp_path)
    assert found.cann == ""
    assert f"CANN in {tmp_path / CANN}, its environment not set" in found.text


def test_files_that_cannot_be_read_are_not_there(tmp_path):
    found = machine(tmp_path, ASCEND_HOME_PATH=str(tmp_path / "no" / "such"))
    assert (found.cann, found.cards) == ("", ())


@pytest.mark.parametrize(
    ("nodes", "marks", "variables", "why", "do"),
    [
        ((), (), {}, "there is no /dev/davinci*", "install its driver"),
        ((), (".dockerenv",), {}, "there is no /dev/davinci* in this container", "--device /dev/davinci0"),
        ((), (), {"KUBERNETES_SERVICE_HOST": "x"}, "in this container", "ASCEND_VISIBLE_DEVICES"),
        (("davinci0",), (), {}, "there is no /dev/davinci_manager", "install the driver"),
        (("davinci0",), ("run/.containerenv",), {}, "there is no /dev/davinci_manager", "give it to the container"),
        (
            ("davinci0", "davinci1", "davinci_manager"), (), {"ASCEND_RT_VISIBLE_DEVICES": "1,0"},
            "ASCEND_RT_VISIBLE_DEVICES=1,0 shows none of 2 cards: numbers must rise, and 0 follows 1",
            "list some of 0, 1, rising",
        ),
        (
            ("davinci4", "davinci5", "davinci_manager"), (), {"ASCEND_RT_VISIBLE_DEVICES": "4,5"},
            "there is no card 4: the mask counts the 2 cards here from 0", "list some of 0, 1, rising",
        ),
        (
            ("davinci0", "davinci_manager"), (), {"ASCEND_RT_VISIBLE_DEVICES": ""}, "it is empty", "unset",
        ),
        (("davinci0", "davinci_manager"), (), {}, "is there, but the driver shows none", "npu-smi info"),
        (("davinci0", "davinci1", "davinci_manager"), (), {}, "davinci0, /dev/davinci1 are there", "belong together"),
    ],
)  # fmt: skip
def test_why_no_card_is_seen(tmp_path, nodes, marks, variables, why, do):
    for mark in marks:
        (tmp_path / mark).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / mark).touch()
    said = machine(tmp_path, *nodes, **variables).why_no_card()
    assert why in said[0]
    assert do in said[1]


def test_cards_that_this_user_may_not_open(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: "davinci" not in str(path))  # root may open everything
    found = machine(tmp_path, "davinci0", "davinci7", "davinci_manager")
    assert found.refused == (0, 7)
    owner = f"{(tmp_path / 'dev/davinci0').owner()}:{(tmp_path / 'dev/davinci0').group()}"
    why, do = found.why_no_card()
    assert why == f"you may not open /dev/davinci0, /dev/davinci7, owned by {owner}"
    assert do == f"let an administrator add you to the group {owner.partition(':')[2]}"
    assert f"you may not open /dev/davinci0, /dev/davinci7 ({owner})" in found.text


def test_the_container_and_its_grant_are_reported(tmp_path):
    (tmp_path / ".dockerenv").touch()
    found = machine(tmp_path, "davinci5", ASCEND_VISIBLE_DEVICES="5", ASCEND_RT_VISIBLE_DEVICES="0")
    assert found.text.endswith("ASCEND_RT_VISIBLE_DEVICES=0 (1 of 1 cards), ASCEND_VISIBLE_DEVICES=5, in a container")


def test_the_mask_in_one_line():
    assert mask_text(None, 8) == ""
    assert mask_text("2,3", 8) == "ASCEND_RT_VISIBLE_DEVICES=2,3 (2 of 8 cards)"
    assert mask_text("1,0", 8) == "ASCEND_RT_VISIBLE_DEVICES=1,0 (0 of 8 cards: numbers must rise, and 0 follows 1)"
    assert mask_text("1,0", None) == "ASCEND_RT_VISIBLE_DEVICES=1,0"


# Libraries


CANN_ADVICE = "load the environment of CANN (source .../Ascend/ascend-toolkit/set_env.sh), or install CANN"


@pytest.mark.parametrize(
    ("library", "told"),
    [
        ("libhccl.so", CANN_ADVICE),
        ("libascendcl.so", CANN_ADVICE),
        ("libatb.so", "load the environment of NNAL (source .../Ascend/nnal/atb/set_env.sh), or install NNAL"),
        (
            "libascend_hal.so",
            "load the environment of the driver (source .../Ascend/driver/bin/setenv.bash), or install the driver",
        ),
        ("libnothing.so.1", "install what has libnothing.so.1, or name its folder in LD_LIBRARY_PATH"),
    ],
)
def test_a_missing_library_says_what_brings_it(tmp_path, monkeypatch, library, told):
    monkeypatch.setenv("HOME", str(tmp_path))
    for folder in ("", "/x/y/"):
        error = ImportError(f"{folder}{library}: cannot open shared object file: No such file or directory")
        assert missing_library(error) == library
        assert reason(error) == f"{library} is missing"
        assert advice(error, tmp_path) == told


def test_what_is_installed_is_named_where_it_lies(tmp_path):
    script = tmp_path / "usr/local/Ascend/ascend-toolkit/set_env.sh"
    script.parent.mkdir(parents=True)
    script.touch()
    error = ImportError("libhccl.so: cannot open shared object file: No such file or directory")
    assert advice(error, tmp_path) == f"load the environment of CANN (source {script})"


def test_other_reasons_are_one_line():
    error = RuntimeError("Two accelerators cannot\nbe used at the same time.\n[ERROR] 2026-11-28 (PID:1) ERR00007 PTA")
    assert missing_library(error) == ""
    assert reason(error) == "RuntimeError: Two accelerators cannot be used at the same time"
    assert reason(ImportError()) == "ImportError"
    assert advice(error) == "see `toprope doctor`, or fix or remove the package that fails"
    both = RuntimeError("aclInit, error code is 507008\n[ERROR] 2026-11-28 (PID:1) ERR00100 PTA call acl api failed")
    assert advice(both) == "see `toprope doctor 507008`"
    other = ImportError("/x/libtorch_npu.so: undefined symbol: _ZN3c1011StorageImplE")
    assert advice(other) == "install the release of it that was built for this torch"
    module = ModuleNotFoundError("No module named 'yaml'")
    assert advice(module) == "install the Python package that has the module yaml"

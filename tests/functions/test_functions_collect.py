"""Discovery of the cards of a machine (`deployment.discover`): every mode, on stand-ins of /dev and of npu-smi."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from toprope.errors import TopropeError
from toprope.functions.deployment.discover import MODES, collect
from toprope.functions.scheduling.ledger import Card

pytestmark = [pytest.mark.native, pytest.mark.process]

HEAD = """
+------------------------------------------------------------------------------------------------+
| npu-smi 24.1.1                   Version: 24.1.1                                               |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
"""
CARD = """| {number:<5} {name:<19} | {health:<13} | 88.2        30                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          26838/ {hbm:<6}        |
+===========================+===============+====================================================+
"""


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine without cards: `machine.npus(...)` and so on give it some."""
    for name in ("ASCEND_RT_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    for name in ("TOPROPE_SIM", "TOPROPE_DEVICE", "TOPROPE_RUN_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    (tmp_path / "bin").mkdir()
    (tmp_path / "dev").mkdir()
    return Machine(tmp_path)


class Machine:
    def __init__(self, root: Path) -> None:
        self.root = root

    def tool(self, name: str, text: str, status: int = 0) -> None:
        path = self.root / "bin" / name
        (self.root / f"{name}.txt").write_text(text)
        path.write_text(f"#!/bin/sh\ncat {self.root / name}.txt\nexit {status}\n")
        path.chmod(0o755)

    def files(self, count: int) -> None:
        for number in range(count):
            (self.root / "dev" / f"davinci{number}").touch()
        (self.root / "dev" / "davinci_manager").touch()

    def smi(self, *cards: tuple[str, str, int]) -> None:
        rows = "".join(
            CARD.format(number=number, name=name, health=health, hbm=hbm)
            for number, (name, health, hbm) in enumerate(cards)
        )
        self.tool("npu-smi", HEAD + rows)

    def cards(self, mode: str = "all") -> tuple[Card, ...]:
        return collect(mode, root=self.root)


def npu(number: int, model: str = "910B4", hbm: int = 32768, healthy: bool = True) -> Card:
    return Card(number, "NPU", model, hbm, healthy)


def test_a_machine_without_cards_has_none_and_says_nothing(machine, caplog):
    for mode in MODES:
        assert machine.cards(mode) == ()
    assert caplog.records == []


@pytest.mark.parametrize("mode", ["all", "hbm", "sfmd", "topo"])
def test_npu_smi_tells_model_memory_and_health(machine, mode):
    machine.files(2)
    machine.smi(("910B4", "OK", 32768), ("910B4", "Alarm", 32768))
    assert machine.cards(mode) == (npu(0), npu(1, healthy=False))


def test_count_needs_device_files_alone_and_counts_those_with_two_digits(machine):
    """Ray's `/dev/davinci?` misses those from the eleventh on."""
    machine.files(12)
    assert machine.cards("count") == tuple(npu(number, "Ascend", 1000) for number in range(12))


def test_count_falls_back_to_npu_smi(machine):
    machine.smi(("910B4", "OK", 32768), ("910B4", "OK", 32768))
    assert [(card.id, card.model) for card in machine.cards("count")] == [(0, "Ascend"), (1, "Ascend")]


def test_off_finds_nothing(machine):
    machine.files(2)
    machine.smi(("910B4", "OK", 32768))
    assert machine.cards("off") == ()


def test_another_mode_is_refused_with_the_vendors_words(machine):
    with pytest.raises(TopropeError, match="npu_collection_mode only support all, count, hbm, sfmd, topo, off"):
        machine.cards("foo")


@pytest.mark.parametrize("status", [None, 1])
def test_without_npu_smi_there_is_a_warning_and_no_npu(machine, caplog, status):
    machine.files(2)
    if status is not None:
        machine.tool("npu-smi", "dcmi model initialized failed", status)
    with caplog.at_level(logging.WARNING, "toprope"):
        assert machine.cards() == ()
    assert "npu_collection_mode=count needs no npu-smi" in caplog.text


@pytest.mark.parametrize(("mask", "numbers"), [
    ("5,6", [5, 6]), ("", []), ("0", [0]), ("7,8", [7]), ("NoDevFiles", []), ("1,0", []),
])  # fmt: skip
def test_the_mask_of_this_process_is_what_it_hands_on(machine, monkeypatch, mask, numbers):
    machine.files(8)
    machine.smi(*[("910B4", "OK", 32768)] * 8)
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", mask)
    for mode in ("all", "count"):
        assert [card.id for card in machine.cards(mode)] == numbers


def test_a_mask_that_shows_less_than_it_lists_is_warned_of(machine, monkeypatch, caplog):
    machine.files(2)
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "1,0")
    with caplog.at_level(logging.WARNING, "toprope"):
        assert machine.cards("count") == ()
    assert "ASCEND_RT_VISIBLE_DEVICES=1,0: numbers must rise, and 0 follows 1" in caplog.text


GPUS = "0, NVIDIA A100-SXM4-40GB, 40960, GPU-abc\n1, NVIDIA A100-SXM4-40GB, 40960, GPU-def\n"


@pytest.mark.parametrize(("mask", "numbers"), [
    (None, [0, 1]), ("1", [1]), ("", []), ("GPU-def", [1]), ("1,0", [1, 0]), ("-1", []),
])  # fmt: skip
def test_gpus_are_told_by_nvidia_smi_and_by_their_own_mask(machine, monkeypatch, mask, numbers):
    machine.tool("nvidia-smi", GPUS)
    if mask is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "")
    cards = machine.cards()
    assert [card.id for card in cards] == numbers
    assert {(card.vendor, card.model, card.hbm) for card in cards} <= {("GPU", "NVIDIA A100-SXM4-40GB", 40960)}


def test_an_nvidia_smi_without_a_driver_has_no_gpus(machine):
    machine.tool("nvidia-smi", "NVIDIA-SMI has failed because it couldn't communicate with the driver.", 9)
    assert machine.cards() == ()


def test_npus_and_gpus_of_one_machine_are_both_there(machine):
    machine.smi(("910B4", "OK", 32768))
    machine.tool("nvidia-smi", GPUS)
    assert [(card.vendor, card.id) for card in machine.cards()] == [("NPU", 0), ("GPU", 0), ("GPU", 1)]
    assert [card.vendor for card in machine.cards("off")] == ["GPU", "GPU"]


@pytest.mark.parametrize(("device", "vendors"), [("cpu", []), ("npu", ["NPU"]), ("cuda", ["GPU", "GPU"])])
def test_a_run_that_was_given_a_device_has_no_other(machine, monkeypatch, device, vendors):
    machine.smi(("910B4", "OK", 32768))
    machine.tool("nvidia-smi", GPUS)
    monkeypatch.setenv("TOPROPE_DEVICE", device)
    assert [card.vendor for card in machine.cards()] == vendors


def test_simulated_cards_are_those_of_the_run_and_npu_smi_is_not_asked(machine, monkeypatch):
    machine.smi(("910B3", "OK", 65536))
    monkeypatch.setenv("TOPROPE_SIM", "910B4x2")
    assert machine.cards() == (npu(0), npu(1))
    assert machine.cards("count") == (npu(0, "Ascend", 1000), npu(1, "Ascend", 1000))
    assert machine.cards("off") == ()
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "1")
    assert machine.cards() == (npu(1),)


def test_a_simulated_card_that_fails_gets_no_work(machine, monkeypatch):
    from toprope.sim.metrics import cards

    monkeypatch.setenv("TOPROPE_SIM", "910B4x2")
    monkeypatch.setenv("TOPROPE_RUN_DIR", str(machine.root))
    states = (cards.CardState(0, 0, 0, ()), cards.CardState(1, 0, 507018, ()))
    monkeypatch.setattr(cards, "read", lambda folder, count: states)
    assert machine.cards() == (npu(0), npu(1, healthy=False))


def test_looking_for_cards_loads_no_torch():
    code = (
        "import sys, os; os.environ['TOPROPE_SIM'] = '910B4x2'\n"
        "from toprope.functions.deployment.discover import collect\n"
        "assert len(collect('all')) == 2\n"
        "print([name for name in ('torch', 'numpy', 'ray', 'cloudpickle') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"

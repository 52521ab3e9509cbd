"""One set of cards for all processes of a run: sums, npu-smi, and the state after a process was killed.

Holds csrc/core/cards.h and src/toprope/sim/metrics/cards.py, with whole runs.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from toprope.cli import npu_smi
from toprope.sim.metrics import cards
from toprope.sim.spec import SimSpec

pytestmark = [pytest.mark.native, pytest.mark.process]

MIB = 2**20
SPEC = SimSpec.parse("910B3x2,hbm=64MiB")

# A process that does what it is told, one expression a line, and answers with the value or the error's name.
PROCESS = """
import sys, torch
kept = {}
def take(name, mib, card=0):
    kept[name] = torch.empty(mib * 2**20 // 4, device=f"npu:{card}")
    return sorted(kept)
def drop(name):
    del kept[name]
    torch.npu.empty_cache()
    return sorted(kept)
def often(times, mib):
    taken = refused = 0
    while taken + refused < times or not taken:  # others may hold the card through all of these
        try:
            take("a", mib)
            taken += 1
            drop("a")
        except torch.OutOfMemoryError:
            refused += 1
        free, total = torch.npu.mem_get_info(0)
        assert 0 <= free <= total
    return True
for line in sys.stdin:
    try:
        answer = repr(eval(line))
    except Exception as error:
        answer = f"{type(error).__name__}: {error}"
    print(answer.replace("\\n", " "), flush=True)
"""


class Process:
    """A process of a run."""

    def __init__(self, folder: Path, **variables: str) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TOPROPE_", "ASCEND"))}
        if "TOPROPE_CACHE_DIR" in os.environ:
            kept["TOPROPE_CACHE_DIR"] = os.environ["TOPROPE_CACHE_DIR"]
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROCESS], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=kept | {"TOPROPE_SIM": SPEC.format(), "TOPROPE_RUN_DIR": str(folder)} | variables,
        )  # fmt: skip

    def __call__(self, line: str) -> str:
        """What the process answers to this expression."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().rstrip("\n")

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait(timeout=60)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=60)


@contextmanager
def processes(folder: Path, number: int, **variables: str) -> Iterator[list[Process]]:
    made = [Process(folder, **variables) for _ in range(number)]
    try:
        assert [each("torch.npu.device_count()") for each in made] == ["2"] * number
        yield made
    finally:
        for each in made:
            each.end()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run, with npu-smi in it."""
    npu_smi.install(tmp_path, SPEC)
    return tmp_path


def shown(run: Path) -> tuple[list[int], dict[int, tuple[int, int]]]:
    """What npu-smi shows: MB held of each card, and by process its card and MB."""
    done = subprocess.run([run / "bin" / "npu-smi", "info"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    held = [int(used) for used in re.findall(r"(\d+) +/ 64 ", done.stdout)]
    rows = re.findall(r"\| (\d+) +0 +\| (\d+) +\| \S+ +\| (\d+) ", done.stdout)
    return held, {int(pid): (int(card), int(mib)) for card, pid, mib in rows}


def test_two_processes_share_one_card(run: Path) -> None:
    with processes(run, 2) as (first, second):
        assert first("take('a', 40)") == "['a']"
        # the sum of both is held to the capacity
        refused = second("take('b', 40)")
        assert refused.startswith("OutOfMemoryError: NPU out of memory. Tried to allocate 4")
        assert second("take('c', 20)") == "['c']"
        # both are shown
        held, by_process = shown(run)
        assert sorted(by_process) == sorted([first.pid, second.pid])
        assert by_process[first.pid][0] == by_process[second.pid][0] == 0
        assert 40 <= by_process[first.pid][1] <= 44
        assert 20 <= by_process[second.pid][1] <= 24
        assert 60 <= held[0] <= 64
        assert held[1] == 0
        # what is free is the same for both
        assert first("torch.npu.mem_get_info(0)") == second("torch.npu.mem_get_info(0)")
        # a process that gives memory back makes room for the other
        assert second("drop('c')") == "[]"
        assert second("take('d', 8)") == "['d']"
        # kill -9 of one frees its part
        first.kill()
        assert second("take('e', 40)") == "['d', 'e']"
        held, by_process = shown(run)
        assert list(by_process) == [second.pid]
        assert 48 <= held[0] == by_process[second.pid][1] <= 64


@pytest.mark.slow
def test_a_killed_process_is_gone_from_npu_smi_at_once(run: Path) -> None:
    with processes(run, 1) as (only,):
        only("take('a', 8)")
        assert shown(run)[1][only.pid] == (0, shown(run)[0][0])
        only.kill()
        assert shown(run) == ([0, 0], {})
        assert [state.reserved for state in cards.read(run, 2)] == [0, 0]


@pytest.mark.slow
def test_a_process_that_ends_well_leaves_nothing(run: Path) -> None:
    with processes(run, 1) as (only,):
        only("take('a', 8, card=1)")
        assert shown(run)[1][only.pid][0] == 1
        only.process.communicate(timeout=60)
        assert shown(run) == ([0, 0], {})


@pytest.mark.slow
def test_cards_are_told_apart_and_a_mask_changes_names_only(run: Path) -> None:
    with processes(run, 1) as (plain,):
        masked = Process(run, ASCEND_RT_VISIBLE_DEVICES="1")
        try:
            assert masked("torch.npu.device_count()") == "1"
            assert masked("take('a', 40, card=0)") == "['a']"
            assert plain("take('b', 40, card=0)") == "['b']"
            assert plain("take('c', 40, card=1)").startswith("OutOfMemoryError")
            assert shown(run)[1] == {plain.pid: (0, shown(run)[0][0]), masked.pid: (1, shown(run)[0][1])}
        finally:
            masked.end()


@pytest.mark.slow
def test_an_unhealthy_card_is_so_for_every_process_and_for_npu_smi(run: Path) -> None:
    with processes(run, 2) as (first, second):
        assert (
            first("kept.setdefault('fault', __import__('toprope.sim').sim.faults.unhealthy(1)).__enter__()") == "None"
        )
        assert "507033" in second("take('a', 1, card=1)")
        assert second("take('a', 1, card=0)") == "['a']"
        text = subprocess.run([run / "bin" / "npu-smi", "info"], capture_output=True, text=True, timeout=60).stdout
        assert re.findall(r"\| (\d) +910B3 +\| (\w+) ", text) == [("0", "OK"), ("1", "Critical")]
        first("kept.pop('fault').__exit__(None, None, None)")
        assert second("take('b', 1, card=1)") == "['a', 'b']"


@pytest.mark.slow
def test_processes_that_take_and_drop_at_once_leave_nothing_behind(run: Path) -> None:
    """Each takes and drops as fast as it can; together they never hold more than the card, and at the end nothing."""
    with processes(run, 4) as made:
        for each in made:
            assert each.process.stdin is not None
            each.process.stdin.write("often(200, 24)\n")
            each.process.stdin.flush()
        for each in made:
            assert each.process.stdout is not None
            assert each.process.stdout.readline() == "True\n"
        assert [state.reserved for state in cards.read(run, 2)] == [0, 0]

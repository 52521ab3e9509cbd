"""`npu-smi info`: runs it and parses its output.

Called by `device.doctor.collect`, `device.npu` (who holds the memory of a full card),
`functions.deployment.discover` and `cli.npu_smi`. The layouts are those of the vendor's releases; numbers are taken as
they are printed: a machine's only card may be number 1, and numbers may have gaps. It may hang with the driver, so each
call has a time limit. Tests: tests/device/test_doctor_collect.py (recorded outputs), tests/device/test_device_full.py
(processes).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from toprope.device.host.machine import SmiCard
from toprope.visible_devices import VARIABLE, visible_cards

__all__ = ["SmiProcess", "holders", "output", "parse", "processes", "start"]

_LIMIT = 10.0

_CARD = re.compile(r"(\d+)\s+(\S*[A-Za-z]\S*)")
_CHIP = re.compile(r"(\d+)(?:\s+(\d+))?")
_MEMORY = re.compile(r"(\d+)\s*/\s*(\d+)")


def parse(text: str) -> tuple[SmiCard, ...]:
    """The chips in the output of `npu-smi info`, in its order; the table of processes below them is left out.

    Each chip has two lines: number and name of the card with its health, then number of the chip, where there is one
    its number on the machine, and memory.
    """
    cards: list[SmiCard] = []
    first: tuple[int, str, str] | None = None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) < 3 or not line.strip().startswith("|"):
            continue
        if "Process id" in line:
            break
        card, chip = _CARD.fullmatch(cells[0]), _CHIP.fullmatch(cells[0])
        if card is not None:
            first = int(card[1]), card[2], cells[1]
        elif chip is not None and first is not None:
            memory = _MEMORY.findall(cells[-1])
            used, total = map(int, memory[-1]) if memory else (None, None)
            phy = None if chip[2] is None else int(chip[2])
            cards.append(SmiCard(first[0], int(chip[1]), first[1], first[2], phy, used, total))
            first = None
    return tuple(cards)


@dataclass(frozen=True)
class SmiProcess:
    """A process as `npu-smi info` lists it.

    Attributes:
        npu: number of the card.
        chip: number of the chip on it; None where the table has none.
        pid: its number.
        name: its name.
        used_mb: memory that it holds, in MB as npu-smi counts them.
    """

    npu: int
    chip: int | None
    pid: int
    name: str
    used_mb: int


def processes(text: str) -> tuple[SmiProcess, ...]:
    """The table of processes at the end of the output of `npu-smi info`."""
    found: list[SmiProcess] = []
    for line in text.partition("Process id")[2].splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        chip = _CHIP.fullmatch(cells[0])
        if chip is not None and len(cells) >= 4 and cells[1].isdigit() and cells[3].isdigit():
            number = None if chip[2] is None else int(chip[2])
            found.append(SmiProcess(int(chip[1]), number, int(cells[1]), cells[2], int(cells[3])))
    return tuple(found)


def holders(index: int, environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The processes that hold memory of npu:INDEX, a text each; empty where npu-smi does not tell them.

    Args:
        index: the number by which the process knows the card.
        environment: its variables, of which PATH and the mask count; this process's own when left out.
    """
    variables = os.environ if environment is None else environment
    program = shutil.which("npu-smi", path=variables.get("PATH"))
    child = None if program is None else start(program, variables)
    text = "" if child is None else output(child)[0]
    cards = parse(text)
    seen = visible_cards(variables.get(VARIABLE), len(cards)).cards
    if index >= len(seen):
        return ()
    card = cards[seen[index]]
    return tuple(
        f"{each.name} (pid {each.pid}) holds {each.used_mb} MB"
        for each in processes(text)
        if each.npu == card.npu and each.chip in (None, card.chip)
    )


def start(program: str, environment: Mapping[str, str]) -> subprocess.Popen[str] | None:
    """Start `npu-smi info`; None where that cannot be."""
    try:
        return subprocess.Popen(
            [program, "info"],
            env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace",
        )  # fmt: skip
    except OSError:
        return None


def output(child: subprocess.Popen[str]) -> tuple[str, str]:
    """Wait for `npu-smi info`: its output, and the reason where it did not end in time."""
    try:
        return child.communicate(timeout=_LIMIT)[0], ""
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return "", f"it did not answer within {_LIMIT:.0f} s"

"""Reading of what `npu-smi info` prints. Pure.

Numbers are taken as they stand there: a machine's only card may be number 1, and numbers may have gaps.
"""

from __future__ import annotations

import re

from toprope.device.machine import SmiCard

__all__ = ["parse"]

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

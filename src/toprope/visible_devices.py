"""Visible devices: which cards a process sees by the vendors' rules, under which numbers, and why no more.

A card has up to three numbers. `physical`: the machine's, as in /dev/davinci5. `visible`: the one that the mask
ASCEND_RT_VISIBLE_DEVICES counts, from 0 over the cards of the machine or of the container. `logical`: the process's
own, as in npu:1. Without container and mask the three are the same.

Example:
    >>> from toprope.visible_devices import visible_cards
    >>> visible_cards("1,3", 4).cards
    (1, 3)
    >>> visible_cards("3,1", 4)
    Visible(cards=(), problem='numbers must rise, and 1 follows 3')

Used by `device`, `sim`, `functions`, `images` and the commands; docs/device.md shows it to users. What torch_npu, CANN
and NVIDIA's driver do with their variables is the measure, odd as it is; only the sentences are free. Tests:
tests/base/test_visible_devices.py, which also asks the simulated card, and tests/base/test_visible_devices_maps.py for
`IdMap`, `cuda_map` and grants.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from toprope.messages import Message

__all__ = [
    "CONTAINER_VARIABLE",
    "CUDA_VARIABLE",
    "VARIABLE",
    "IdMap",
    "Visible",
    "cuda_map",
    "explain",
    "explain_grant",
    "granted_cards",
    "npu_map",
    "visible_cards",
]

VARIABLE = "ASCEND_RT_VISIBLE_DEVICES"
"""The variable of the vendor's runtime; it is read when a process first touches a card, and never again."""

CONTAINER_VARIABLE = "ASCEND_VISIBLE_DEVICES"
"""Cards that a container is granted, by the machine's numbers; read by Ascend's container runtime, not by CANN."""

CUDA_VARIABLE = "CUDA_VISIBLE_DEVICES"
"""NVIDIA's variable; unlike the vendor's of Ascend it may list cards in any order, and by UUID."""


@dataclass(frozen=True)
class Visible:
    """The cards that a mask shows.

    Attributes:
        cards: numbers of the machine's cards in the order of the process: npu:0 is the first.
        problem: why the mask shows less than it lists, without a full stop; empty where it shows all that it lists.
    """

    cards: tuple[int, ...]
    problem: str = ""


def visible_cards(mask: str | None, count: int) -> Visible:
    """The cards that a process with this mask sees.

    The rules, as torch_npu shows them (device_count() of a process with such a mask): reading stops at the first
    character that is neither digit nor comma; numbers that do not rise leave no card; the first number that is not
    there ends the list; an empty mask shows nothing.

    Args:
        mask: the value of the variable; None where it is not set, which shows all cards.
        count: number of cards of the machine.
    """
    if mask is None:
        return Visible(tuple(range(count)))
    if not mask:
        return Visible((), Message("it is empty"))
    cards: list[int] = []
    place = 0
    while mask[place : place + 1].isascii() and mask[place : place + 1].isdigit():
        end = place
        while end < len(mask) and mask[end] in "0123456789":
            end += 1
        card = int(mask[place:end])
        if cards and card <= cards[-1]:
            return Visible((), Message("numbers must rise, and {card} follows {last}", card=card, last=cards[-1]))
        if card >= count:
            return Visible(tuple(cards), Message("there is no card {card}", card=card))
        cards.append(card)
        place = end + 1
        if mask[end : end + 1] != ",":
            place = end
            break
    if place >= len(mask):
        return Visible(tuple(cards))
    return Visible(
        tuple(cards),
        Message("reading stops at {character!r}, character {place}", character=mask[place], place=place + 1),
    )


def explain(mask: str, count: int) -> str:
    """One sentence, without a full stop, that says what a mask shows and why no more.

    Example:
        >>> explain("0,99", 4)
        'ASCEND_RT_VISIBLE_DEVICES=0,99 shows 1 of 4 cards: there is no card 99'
    """
    seen = visible_cards(mask, count)
    number = (
        Message("{cards} of {count} cards", cards=len(seen.cards), count=count) if seen.cards else Message("no card")
    )
    why = Message(": {problem}", problem=seen.problem) if seen.problem else ""
    return Message("{variable}={mask} shows {number}{why}", variable=VARIABLE, mask=mask, number=number, why=why)


@dataclass(frozen=True)
class IdMap:
    """The numbers of the cards that a process sees.

    Attributes:
        visible: for npu:0, npu:1, ... (or cuda:0, ...) the number that the mask counts.
        physical: the same cards' numbers on the machine.
        problem: why there are fewer than were listed, without a full stop; empty where there are not.
    """

    visible: tuple[int, ...]
    physical: tuple[int, ...]
    problem: str = ""

    def __len__(self) -> int:
        return len(self.physical)

    def to_physical(self, logical: int) -> int:
        """The machine's number of a card of this process.

        Raises:
            IndexError: the process sees no such card.
        """
        return self.physical[self._checked(logical)]

    def to_visible(self, logical: int) -> int:
        """The number under which the mask counts a card of this process.

        Raises:
            IndexError: the process sees no such card.
        """
        return self.visible[self._checked(logical)]

    def from_physical(self, physical: int) -> int | None:
        """This process's number of one of the machine's cards; None where it does not see it."""
        return self.physical.index(physical) if physical in self.physical else None

    def from_visible(self, visible: int) -> int | None:
        """This process's number of the card that the mask counts so; None where it does not see it."""
        return self.visible.index(visible) if visible in self.visible else None

    def mask_for(self, *logical: int) -> str:
        """The mask that shows a child process these cards of this one; the child counts them from 0, rising.

        Raises:
            IndexError: the process sees no such card.
        """
        return ",".join(str(each) for each in sorted({self.to_visible(card) for card in logical}))

    def _checked(self, logical: int) -> int:
        if not 0 <= logical < len(self.physical):
            raise IndexError(f"the process sees {len(self.physical)} cards, and none of the number {logical}")
        return logical


def npu_map(mask: str | None, granted: str | None, machine: Sequence[int]) -> IdMap:
    """The numbers of the NPUs that a process sees.

    The container's runtime leaves a card its number (/dev/davinci5 keeps its name), but CANN counts the cards of the
    container from 0, and the mask with it.

    Args:
        mask: ASCEND_RT_VISIBLE_DEVICES; None where it is not set.
        granted: ASCEND_VISIBLE_DEVICES, where a container's runtime has acted on it; None outside of containers, and
            where `machine` already is what the container has.
        machine: numbers of the machine's cards, with or without gaps, such as those of /dev/davinci*.

    Example:
        >>> npu_map("1,2", "4-7", range(8)).physical
        (5, 6)
        >>> npu_map("4,5", "4-5", range(8))
        IdMap(visible=(), physical=(), problem='there is no card 4: the mask counts the 2 cards here from 0')
    """
    cards = sorted(set(machine))
    problem = ""
    if granted is not None:
        grant = granted_cards(granted)
        missing = [card for card in grant.cards if card not in cards]
        problem = grant.problem or (Message("the machine has no card {card}", card=missing[0]) if missing else "")
        cards = [card for card in grant.cards if card in cards]
    seen = visible_cards(mask, len(cards))
    if seen.problem:
        problem = seen.problem
        if problem.startswith("there is no card"):
            problem += Message(": the mask counts the {cards} cards here from 0", cards=len(cards))
    return IdMap(seen.cards, tuple(cards[card] for card in seen.cards), problem)


_GRANT = re.compile(r"(?:Ascend[^-,\s]*-)?(\d{1,9})(?:-(\d{1,9}))?")
_MOST_GRANTED = 4096


def granted_cards(granted: str) -> Visible:
    """The cards that ASCEND_VISIBLE_DEVICES grants a container, by the machine's numbers, rising.

    Args:
        granted: numbers and ranges ("0,2-4"), as Kubernetes gives them ("Ascend910-0,Ascend910-1"), "void" for none.

    Example:
        >>> granted_cards("4-6").cards
        (4, 5, 6)
    """
    if granted.strip() in ("", "void"):
        return Visible((), Message("it grants no card"))
    cards: set[int] = set()
    for part in granted.split(","):
        found = _GRANT.fullmatch(part.strip())
        if found is None:
            return Visible((), Message("{part!r} is no number of a card", part=part.strip()))
        first, last = int(found[1]), int(found[2] or found[1])
        if not first <= last < _MOST_GRANTED:
            return Visible((), Message("{part!r} is no range of cards", part=part.strip()))
        cards.update(range(first, last + 1))
    return Visible(tuple(sorted(cards)))


def explain_grant(mask: str | None, granted: str | None, nodes: Sequence[int]) -> str:
    """The difference between the cards that a container was granted and those its programs open; "" for none.

    Args:
        mask: ASCEND_RT_VISIBLE_DEVICES; None where it is not set.
        granted: ASCEND_VISIBLE_DEVICES; None where it is not set.
        nodes: numbers of the device files /dev/davinci* that the container has.

    Example:
        >>> explain_grant(None, "5", range(8))
        'ASCEND_VISIBLE_DEVICES=5 grants card 5, and programs see 8 cards: npu:0 is card 0, which was never granted'
    """
    grant = granted_cards(granted) if granted is not None else Visible(())
    if granted is None or not grant.cards:
        if not grant.problem:
            return ""
        return Message("{variable}={mask}: {problem}", variable=CONTAINER_VARIABLE, mask=granted, problem=grant.problem)
    seen = npu_map(mask, None, nodes)
    for logical, card in enumerate(seen.physical):
        if card not in grant.cards:
            return Message(
                "{container_variable}={granted} grants {cards}, and programs see {seen} card{s}: "
                "npu:{logical} is card {card}, which was never granted",
                container_variable=CONTAINER_VARIABLE,
                granted=granted,
                cards=_cards(grant.cards),
                seen=len(seen),
                s="s" if len(seen) > 1 else "",
                logical=logical,
                card=card,
            )
    if not seen.physical and mask is not None and nodes:
        return Message(
            "{variable}={mask} shows none of {nodes}: {problem}",
            variable=VARIABLE,
            mask=mask,
            nodes=_cards(sorted(nodes)),
            problem=seen.problem,
        )
    return ""


def _cards(cards: Sequence[int]) -> str:
    return Message("card{s} {cards}", s="s" if len(cards) > 1 else "", cards=", ".join(map(str, cards)))


def cuda_map(mask: str | None, count: int, uuids: Sequence[str] = ()) -> IdMap:
    """The numbers of the GPUs that a process sees, by torch.cuda's rules; the mask counts the machine's.

    Any order is kept; the first entry that is not there ends the list; an entry that comes twice leaves none. A GPU
    can also be named by its UUID, or by a beginning of it that fits one GPU only; the first entry decides which of the
    two is meant.

    Args:
        mask: CUDA_VISIBLE_DEVICES; None where it is not set, which shows all.
        count: number of GPUs of the machine.
        uuids: their UUIDs ("GPU-..."), where they are known.

    Example:
        >>> cuda_map("2,0", 4).physical
        (2, 0)
    """
    if mask is None:
        return IdMap(tuple(range(count)), tuple(range(count)))
    if not mask:
        return IdMap((), (), "it is empty")
    prefix = mask[:4] if mask.startswith(("GPU-", "MIG-")) else ""
    listed: list[str | int] = []
    problem = ""
    for part in mask.split(","):
        entry = part if prefix else _leading_number(part.strip())
        if entry in listed:
            return IdMap((), (), f"{entry} is listed twice")
        if (isinstance(entry, str) and not entry.startswith(prefix)) or (isinstance(entry, int) and entry < 0):
            problem = f"reading stops at {part!r}"
            break
        listed.append(entry)
    found: list[int] = []
    for entry in listed:
        card = _by_uuid(entry, uuids) if isinstance(entry, str) else entry
        if not 0 <= card < count:
            return IdMap(tuple(found), tuple(found), f"there is no GPU {entry}")
        if card in found:
            return IdMap((), (), f"GPU {card} is listed twice")
        found.append(card)
    return IdMap(tuple(found), tuple(found), problem)


def _leading_number(text: str) -> int:
    """The number at the beginning of a text, as C reads it: "1gpu" is 1; -1 where there is none."""
    found = re.match(r"[+-]?[0-9]+", text)
    return int(found[0]) if found else -1


def _by_uuid(text: str, uuids: Sequence[str]) -> int:
    """The GPU whose UUID begins so; -1 where it is none, or more than one."""
    fitting = [index for index, uuid in enumerate(uuids) if uuid.startswith(text)]
    return fitting[0] if len(fitting) == 1 else -1

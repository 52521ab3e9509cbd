"""Which cards ASCEND_RT_VISIBLE_DEVICES shows to a process, by the vendor's rules, and why it shows no more.

Example:
    >>> from toprope.visible import visible_cards
    >>> visible_cards("1,3", 4).cards
    (1, 3)
    >>> visible_cards("3,1", 4)
    Visible(cards=(), problem='numbers must rise, and 1 follows 3')
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["VARIABLE", "Visible", "explain", "visible_cards"]

VARIABLE = "ASCEND_RT_VISIBLE_DEVICES"
"""The variable of the vendor's runtime; it is read when a process first touches a card, and never again."""


@dataclass(frozen=True)
class Visible:
    """What a mask shows.

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
        return Visible((), "it is empty")
    cards: list[int] = []
    place = 0
    while mask[place : place + 1].isascii() and mask[place : place + 1].isdigit():
        end = place
        while end < len(mask) and mask[end] in "0123456789":
            end += 1
        card = int(mask[place:end])
        if cards and card <= cards[-1]:
            return Visible((), f"numbers must rise, and {card} follows {cards[-1]}")
        if card >= count:
            return Visible(tuple(cards), f"there is no card {card}")
        cards.append(card)
        place = end + 1
        if mask[end : end + 1] != ",":
            place = end
            break
    if place >= len(mask):
        return Visible(tuple(cards))
    return Visible(tuple(cards), f"reading stops at {mask[place]!r}, character {place + 1}")


def explain(mask: str, count: int) -> str:
    """One sentence, without a full stop, that says what a mask shows and why no more.

    Example:
        >>> explain("0,99", 4)
        'ASCEND_RT_VISIBLE_DEVICES=0,99 shows 1 of 4 cards: there is no card 99'
    """
    seen = visible_cards(mask, count)
    number = f"{len(seen.cards)} of {count} cards" if seen.cards else "no card"
    why = f": {seen.problem}" if seen.problem else ""
    return f"{VARIABLE}={mask} shows {number}{why}"

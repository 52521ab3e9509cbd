"""The cards of a node: their use, and the choice of cards for a request; pure.

A part of `scheduling.ledger`, which keeps a `Use` for each card. The order of the choice, the 110 streams of a card and
the words of a shortage are openYuanrong's. The fields of a `Share` go, in their order, to a file that other programs
read (`deployment.reservations`). Tests: tests/functions/test_functions_ledger.py,
tests/functions/test_functions_claims.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass

from toprope.functions.scheduling.requests import CardRequest, matches

__all__ = ["STREAMS", "Card", "Share", "Use", "card_reason", "choose"]

STREAMS = 110
"""Streams of a card that requests for a share of it by memory may take together."""


@dataclass(frozen=True, slots=True)
class Card:
    """A card of a node: its model, memory and health.

    Attributes:
        id: what the mask of visible cards calls it.
        vendor: "NPU" or "GPU".
        model: as the node's tools call it, such as "910B4".
        hbm: MB of its memory; 0 where not known.
        healthy: a card that is not gets no work.
    """

    id: int
    vendor: str
    model: str
    hbm: int = 0
    healthy: bool = True


ELSEWHERE = -1
"""Number of the grant of a card that another program holds."""


@dataclass(frozen=True)
class Share:
    """The part of a card that a program holds.

    Attributes:
        wholes: 1 where it has it all.
        hbm: MB of its memory.
        stream, latency: of requests for a share of it.
        sharers: grants that have a share.
    """

    wholes: int = 0
    hbm: int = 0
    stream: int = 0
    latency: int = 0
    sharers: int = 0

    def __add__(self, other: Share) -> Share:
        return Share(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))


@dataclass
class Use:
    """Use of a card: the parts that this program and others hold.

    Attributes:
        whole: number of the grant that has it all; None for none.
        hbm: MB of its memory.
        stream, latency: of requests for a share of it.
        sharers: grants that have a share.
        elsewhere: the part of it that other programs hold.
    """

    whole: int | None = None
    hbm: int = 0
    stream: int = 0
    latency: int = 0
    sharers: int = 0
    elsewhere: Share = Share()

    @property
    def own(self) -> Share:
        """The part that this program holds."""
        rest = self.elsewhere
        wholes = int(self.whole is not None and self.whole != ELSEWHERE)
        return Share(
            wholes, self.hbm - rest.hbm, self.stream - rest.stream, self.latency - rest.latency,
            self.sharers - rest.sharers,
        )  # fmt: skip

    def share_with(self, elsewhere: Share) -> None:
        """Set the part that other programs hold."""
        own = self.own
        self.hbm, self.stream = own.hbm + elsewhere.hbm, own.stream + elsewhere.stream
        self.latency, self.sharers = own.latency + elsewhere.latency, own.sharers + elsewhere.sharers
        if not own.wholes:
            self.whole = ELSEWHERE if elsewhere.wholes else None
        self.elsewhere = elsewhere

    @property
    def is_used(self) -> bool:
        """True if any part of it is held."""
        return self.whole is not None or self.sharers > 0


Uses = Mapping[tuple[str, int], Use]
"""Use of each card, by vendor and id."""


def _suitable(cards: Sequence[Card], asked: CardRequest) -> list[Card]:
    """The healthy cards of the first model of the node that matches, lowest id first."""
    fitting = [card for card in cards if matches(asked, card.vendor, card.model)]
    model = fitting[0].model if fitting else ""
    return sorted((card for card in fitting if card.model == model and card.healthy), key=lambda card: card.id)


def choose(cards: Sequence[Card], uses: Uses, asked: CardRequest) -> tuple[list[Card], int]:
    """The cards for a request, and the MB of memory that it takes of each; none where it does not fit.

    Whole cards go by the lowest number. A share by `count` goes to a card that is shared already, one by memory to the
    card with the least latency and then the least free memory (openYuanrong's order).
    """
    cards = _suitable(cards, asked)
    use = {card.id: uses[card.vendor, card.id] for card in cards}
    if asked.whole_cards:
        free = [card for card in cards if not use[card.id].is_used]
        return (free[: asked.whole_cards], 0) if len(free) >= asked.whole_cards else ([], 0)
    shared = [card for card in cards if use[card.id].whole is None]
    if asked.count:
        # the card that is already shared first, so that whole ones stay free
        for card in sorted(shared, key=lambda card: (not use[card.id].sharers, card.id)):
            taken = int(card.hbm * asked.count)
            if taken and use[card.id].hbm + taken <= card.hbm:
                return [card], taken
        return [], 0
    fitting = [
        card
        for card in shared
        if use[card.id].hbm + asked.hbm <= card.hbm and use[card.id].stream + asked.stream <= STREAMS
    ]
    best = min(fitting, key=lambda card: (use[card.id].latency, card.hbm - use[card.id].hbm, card.id), default=None)
    return ([], 0) if best is None else ([best], asked.hbm)


def card_reason(cards: Sequence[Card], asked: CardRequest) -> str:
    """Return why a node has no cards for a request now, in the vendor's words, followed by the existing cards."""
    known = sorted({f"{card.vendor}/{card.model}" for card in cards})
    if not any(matches(asked, card.vendor, card.model) for card in cards):
        there = f" (there are {', '.join(known)})" if known else " (no card was found on the node)"
        return ("Card Type Not Found" if asked.count else "Card Type: Not Found") + there
    cards = _suitable(cards, asked)
    if 0 < asked.count < 1 and cards and not any(card.hbm for card in cards):
        return f"specified card quantity {asked.count} must be a whole number"
    if asked.count:
        return "card count: Not Enough"
    return "HBM: Not Enough" if any(card.hbm for card in cards) else "HBM: Not Found"

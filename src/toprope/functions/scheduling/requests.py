"""Requests for resources: grammar of their keys, parsing and checks; pure.

Both backends parse the options of each function and instance by it (`lifecycle.admitted`). Keys with exactly three
fields, `VENDOR/model/kind`, ask for cards; the model is a regular expression that must match the whole name of a card's
model. Every other key names a scalar resource that a node must have been given. Rules, ranges and messages are
openYuanrong's (its scheduling documentation and sources, master of 2026-08); what follows a message as advice, and that
`Ascend910B4` matches `910B4`, is ours. tests/functions/test_functions_resources.py has them to the letter.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

__all__ = [
    "CPU_RANGE",
    "MEMORY_RANGE",
    "CardRequest",
    "InvalidRequestError",
    "Request",
    "check_keys",
    "is_card_key",
    "matches",
    "model_names",
    "parse",
]

CPU_RANGE = (300, 16000)
"""Millicores that a request without cards may ask for."""

MEMORY_RANGE = (128, 1073741824)
"""MB (2**20 bytes) that a request without cards may ask for."""

SMALLEST_SHARE = 0.0001
"""Smallest share of a card."""

_SHARED = ("HBM", "latency", "stream")
_PREFIX = "Ascend"


class InvalidRequestError(ValueError):
    """A request that is invalid on any node.

    Args:
        message: the vendor's words.
        code: the vendor's code, 1006 for most.
        advice: what was given, and what to do; "" where the message says it.
    """

    def __init__(self, message: str, code: int = 1006, advice: str = "") -> None:
        super().__init__(message, code)
        self.message = message
        self.code = code
        self.explained = f"{message} {advice}" if advice else message

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class CardRequest:
    """Cards of one vendor, all on one node.

    Attributes:
        vendor: "NPU" or "GPU".
        model: regular expression for the whole name of the model.
        count: whole cards, or, below 1, a share of one card; 0 where the other three are given.
        hbm: MB of one card's memory.
        latency: load, in ms, that the card is charged with.
        stream: streams of the card.
    """

    vendor: str
    model: str
    count: float = 0
    hbm: int = 0
    latency: int = 0
    stream: int = 0

    @property
    def whole_cards(self) -> int:
        """Cards that must be free altogether; 0 for a share of one."""
        return int(self.count) if self.count >= 1 else 0

    @property
    def kind(self) -> str:
        """Kind of the request: "count" or "HBM"."""
        return "count" if self.count else "HBM"


@dataclass(frozen=True)
class Request:
    """Resources that an instance requests.

    Attributes:
        cpu: millicores.
        memory: MB (2**20 bytes).
        cards: one entry for each vendor.
        scalars: amounts of named resources.
    """

    cpu: int = 500
    memory: int = 500
    cards: tuple[CardRequest, ...] = ()
    scalars: Mapping[str, float] = field(default_factory=dict)


def is_card_key(key: str) -> bool:
    """True if a key requests cards.

    Example:
        >>> is_card_key("NPU/.+/count"), is_card_key("NPU"), is_card_key("NPU/910B/4/count")
        (True, False, False)
    """
    return key.count("/") == 2


def check_keys(request: Request, known: Iterable[str]) -> None:
    """Refuse keys of named resources that are spelled as those of another scheduler, such as "nvidia.com/gpu".

    Args:
        request: the request.
        known: named resources that some node has.

    Raises:
        InvalidRequestError: no node has the key.
    """
    there = set(known)
    for key in request.scalars:
        if "/" in key and key not in there:
            raise InvalidRequestError(
                f"invalid resource parameter {key}: no node has a resource of this name, and keys of cards are "
                "VENDOR/model/kind, such as NPU/.+/count or GPU/.+/count"
            )


def parse(custom_resources: Mapping[str, float], cpu: int = 500, memory: int = 500) -> Request:
    """Build the request from an instance's options.

    Args:
        custom_resources: amounts by key.
        cpu: millicores.
        memory: MB.

    Raises:
        InvalidRequestError: it makes no sense; the message is the vendor's.
    """
    groups: dict[tuple[str, str], dict[str, float]] = {}
    scalars: dict[str, float] = {}
    for key, amount in custom_resources.items():
        if is_card_key(key):
            vendor, model, kind = key.split("/")
            _check_pattern(vendor, model)
            if not 0 < amount < math.inf:
                raise InvalidRequestError(
                    f"Heterogeneous resources {key} being 0 is invalid in schedule request, non-zero required."
                )
            groups.setdefault((vendor, model), {})[kind] = amount
        else:
            _check_scalar(key, amount)
            scalars[key] = amount
    cards = tuple(_card_request(vendor, model, kinds) for (vendor, model), kinds in groups.items())
    vendors = [each.vendor for each in cards]
    for vendor in vendors:
        if vendors.count(vendor) > 1:
            models = ", ".join(each.model for each in cards if each.vendor == vendor)
            raise InvalidRequestError(
                f"Heterogeneous resources of {vendor} for more than one model ({models}) are invalid: all cards of a "
                f"request are of one model, and alternatives are one expression, as in {vendor}/(A|B)/count."
            )
    if not cards or cpu < 0:
        _check_range("CPU", cpu, CPU_RANGE, "millicores")
    if not cards or memory < 0:
        _check_range("memory", memory, MEMORY_RANGE, "MB")
    return Request(cpu, memory, cards, scalars)


def model_names(model: str) -> tuple[str, ...]:
    """The names that a model is known by: npu-smi says "910B4", users also write "Ascend910B4".

    openYuanrong knows only the first; that both match is ours.
    """
    other = model.removeprefix(_PREFIX) if model.startswith(_PREFIX) else _PREFIX + model
    return (model, other) if other and other != _PREFIX else (model,)


def matches(request: CardRequest, vendor: str, model: str) -> bool:
    """True if cards of this model match the request.

    Example:
        >>> matches(CardRequest("NPU", "910.*", count=1), "NPU", "910B4")
        True
        >>> matches(CardRequest("NPU", "910", count=1), "NPU", "910B4")
        False
    """
    if request.vendor != vendor:
        return False
    names = model_names(model) if vendor == "NPU" else (model,)
    pattern = f"{vendor}/{request.model}"  # the whole key is one expression: NPU/a|b is not NPU/(a|b)
    return any(re.fullmatch(pattern, f"{vendor}/{name}") is not None for name in names)


def _check_pattern(vendor: str, model: str) -> None:
    try:
        re.compile(f"{vendor}/{model}")
    except re.error:
        raise InvalidRequestError(f"Heterogeneous product regex syntax error: {vendor}/{model}") from None


def _check_scalar(key: str, amount: float) -> None:
    if not 0 <= amount < math.inf:
        raise InvalidRequestError(f"specified quantity {amount} of {key} is invalid.")


def _card_request(vendor: str, model: str, kinds: Mapping[str, float]) -> CardRequest:
    count = kinds.get("count", 0)
    if count and len(kinds) > 1:
        raise InvalidRequestError(
            "Heterogeneous resources count being non-zero and other heterogeneous resources exist is invalid.",
            advice=f"given: {', '.join(kinds)}. do: count alone, or {', '.join(_SHARED)} without it",
        )
    if not count:
        missing = sum(kind not in kinds for kind in _SHARED)
        if missing or len(kinds) > len(_SHARED):
            raise InvalidRequestError(
                f"Heterogeneous resources (exclude count) must be {len(_SHARED)}, but now have {missing} missing.",
                advice=f"given: {', '.join(kinds)}. do: {vendor}/{model}/count for cards or a share of one, or "
                f"{', '.join(_SHARED)} together for a share by memory",
            )
        hbm, latency, stream = (math.ceil(kinds[kind]) for kind in _SHARED)
        return CardRequest(vendor, model, hbm=hbm, latency=latency, stream=stream)
    if count < SMALLEST_SHARE or (count > 1 and not float(count).is_integer()):
        raise InvalidRequestError(
            f"specified quantity {count} is invalid because quantity >1 must be whole numbers or can not less than "
            f"{SMALLEST_SHARE}"
        )
    return CardRequest(vendor, model, count=count)


def _check_range(what: str, amount: int, allowed: tuple[int, int], unit: str) -> None:
    low, high = allowed
    if not low <= amount <= high:
        raise InvalidRequestError(
            f"Required {what} resource size {amount} {unit} is invalid. Valid value range is [{low},{high}] {unit}"
        )

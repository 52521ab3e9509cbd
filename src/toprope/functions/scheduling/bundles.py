"""Bundles of resources, and the checks of groups and their sizes; pure.

Called by the API, by resource groups of both backends and by `lifecycle.GroupLife`. A resource group is a list of
bundles that are all granted or none. Rules, defaults, limits and messages are openYuanrong's (its documentation of
resource groups and its Python API, master of 2026-08), but for `why_not_together`; that a bundle is a `Node` of a
ledger of its own is our choice. Tests: tests/functions/test_functions_groups.py,
tests/functions/test_functions_resource_groups.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from toprope.functions.exceptions import CODES, YRequestError, YRRuntimeError
from toprope.functions.scheduling.cards import STREAMS
from toprope.functions.scheduling.ledger import Grant, Node
from toprope.functions.scheduling.nodes import Shortage
from toprope.functions.scheduling.requests import (
    CPU_RANGE,
    MEMORY_RANGE,
    CardRequest,
    InvalidRequestError,
    Request,
    parse,
)
from toprope.functions.scheduling.strategies import STRATEGIES

__all__ = [
    "BUNDLE",
    "bundle_node",
    "check_function_group",
    "check_name",
    "check_strategy",
    "chosen_groups",
    "parse_bundles",
    "rest_of_cards",
    "why_not_together",
]

Group = TypeVar("Group")

BUNDLE = "bundle"
"""The label of a bundle's node: its number."""

MOST_MEMBERS = 256
"""Members of a function group."""

_MOST = 2**31 - 1


def parse_bundles(bundles: Any) -> tuple[Request, ...]:
    """The resources of each bundle. "CPU" is in millicores, "Memory" in MB; absent or 0 they are 300 and 128.

    Raises:
        TypeError: not a list of dictionaries.
        ValueError: there is no bundle.
        YRequestError: an amount is negative (1001), or a key cannot be (1006).
    """
    if not isinstance(bundles, list):
        raise TypeError(f"invalid bundles type, actual: {type(bundles)}, expect: list of dict")
    for index, each in enumerate(bundles):
        if not isinstance(each, dict):
            kind = type(each).__name__
            raise TypeError(
                f"invalid bundles type, bundle index: {index}: {kind!r} object has no attribute 'items', expect: dict"
            )
    if not bundles:
        raise ValueError("invalid bundles number, actual: 0, expect: > 0.")
    return tuple(_parse_bundle(index, bundle) for index, bundle in enumerate(bundles))


def _parse_bundle(index: int, bundle: Mapping[str, Any]) -> Request:
    for key, amount in bundle.items():
        if not isinstance(key, str) or isinstance(amount, bool) or not isinstance(amount, int | float):
            raise TypeError(
                f"invalid bundle, bundle index: {index}, value of {key}: must be real number, not "
                f"{type(amount).__name__}"
            )
        if not amount >= 0:
            raise YRequestError(
                f"invalid bundle, bundle index: {index}, please set the value of {key} >= 0.",
                CODES["invalid parameter"],
                10,
            )
    others = {key: amount for key, amount in bundle.items() if key not in ("CPU", "Memory") and amount}
    try:
        request = parse(others, CPU_RANGE[0], MEMORY_RANGE[0])
    except InvalidRequestError as error:
        raise YRequestError(error.explained, error.code) from None
    # no upper limit: a bundle may serve many instances
    return replace(
        request, cpu=int(bundle.get("CPU", 0)) or CPU_RANGE[0], memory=int(bundle.get("Memory", 0)) or MEMORY_RANGE[0]
    )


def check_name(name: Any) -> None:
    """Refuse a name that no resource group can have.

    Raises:
        TypeError: not a text.
        YRequestError: it is "primary" or empty (1001).
    """
    if not isinstance(name, str):
        raise TypeError(f"invalid name type: {type(name)}, should be a str")
    if name in ("", "primary"):
        raise YRequestError(
            f"invalid resource group name, name: {name}, please set the name other than primary or empty.",
            CODES["invalid parameter"],
            10,
        )


def check_strategy(strategy: Any) -> str:
    """The strategy, "" for None.

    Raises:
        ValueError: there is no such strategy.
    """
    if strategy is not None and strategy not in STRATEGIES:
        known = ", ".join(STRATEGIES[1:])
        raise ValueError(f"invalid strategy, actual: {strategy}, expect: None, {known}")
    return strategy or ""


def check_function_group(size: Any, bundle_size: Any, timeout: float | None) -> None:
    """Refuse sizes that a function group cannot have.

    Raises:
        ValueError: the message names the sizes.
    """
    if isinstance(size, bool) or not isinstance(size, int) or not 0 < size <= MOST_MEMBERS:
        raise ValueError(f"invalid group size: {size}, group size should be in [1, {MOST_MEMBERS}]")
    if isinstance(bundle_size, bool) or not isinstance(bundle_size, int) or bundle_size <= 0:
        raise ValueError(f"invalid bundle size: {bundle_size}, bundle size should be bigger than 0")
    if bundle_size > size or size % bundle_size:
        raise ValueError(
            f"invalid bundle size: {bundle_size}, the group size {size} should be a multiple of the bundle size"
        )
    if timeout is not None and timeout != -1 and not 0 <= timeout <= _MOST:
        raise ValueError(f"invalid timeout {timeout} in FunctionGroupOptions, expect: -1, [0, {_MOST}]")


def bundle_node(index: int, host: Node, grant: Grant) -> Node:
    """Return a bundle as a node: its part of the host, with the host's labels and its own number."""
    request = grant.request
    return Node(
        id=f"{host.id}/{index}",
        cpu=request.cpu,
        memory=request.memory,
        cards=tuple(card for card in host.cards if card.id in grant.cards.get(card.vendor, ())),
        scalars=dict(request.scalars),
        labels={**host.labels, BUNDLE: str(index)},
    )


def rest_of_cards(bundle: Node, grant: Grant) -> Request | None:
    """Return the part of a bundle's cards that it does not hold, if it has a share of one; None for whole cards."""
    shared = [asked for asked in grant.request.cards if not asked.whole_cards]
    if not shared:
        return None
    rest = []
    for asked in shared:
        (card,) = (card for card in bundle.cards if card.vendor == asked.vendor)
        streams = STREAMS - asked.stream if asked.hbm else 0
        rest.append(
            CardRequest(asked.vendor, re.escape(card.model), hbm=card.hbm - grant.hbm[asked.vendor], stream=streams)
        )
    return Request(0, 0, tuple(rest))


def chosen_groups(groups: Mapping[str, Group], name: str | None) -> list[Group]:
    """The group of a name, or all for none.

    Raises:
        YRRuntimeError: there is no such group.
    """
    if name and name not in groups:
        raise YRRuntimeError(f"there is no resource group {name}", CODES["invalid parameter"])
    return [groups[name]] if name else list(groups.values())


def why_not_together(reasons: Sequence[Shortage], strategy: str, nodes: int) -> str:
    """Return the reason why a group does not have its bundles.

    Args:
        reasons: of each bundle for itself.
        strategy: of the group; "" for none.
        nodes: how many there are.
    """
    short = dict.fromkeys(each.explained for each in reasons if each.reasons)
    if short:
        return "\n".join(short)
    how = f" as {strategy}" if strategy else ""
    return f"its {len(reasons)} bundles do not fit together{how} ({nodes} {'node' if nodes == 1 else 'nodes'})"

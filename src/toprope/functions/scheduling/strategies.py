"""Placement strategies for several requests: pack on few nodes, spread over many, or strictly one; pure.

`scheduling.ledger` calls it for requests that are granted together. The names and their meaning are those of
openYuanrong's resource groups, and of Ray's placement groups; the search and its limit of steps are free, as long as
all is given back where it finds nothing. Tests: tests/functions/test_functions_groups.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["STRATEGIES", "arrange"]

STRATEGIES = ("", "PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
"""Names of the strategies; "" (or None) is the default, PACK."""

_STEPS = 2000
_TRIES = {"": ("STRICT_PACK", "PACK"), "PACK": ("STRICT_PACK", "PACK"), "SPREAD": ("STRICT_SPREAD", "SPREAD")}


def arrange(
    count: int,
    strategy: str,
    nodes: Sequence[str],
    take: Callable[[int, str], bool],
    give_back: Callable[[int, str], None],
) -> list[str] | None:
    """Find a node for each of several things, all or none.

    PACK first tries one node for all, and SPREAD one node for each, then the next best. The search is exact until
    it has taken `_STEPS` steps, which only many different things on many nodes need; then it has found nothing.

    Args:
        count: how many.
        strategy: of `STRATEGIES`.
        nodes: names, best first.
        take: takes what thing number so asks for from a node; whether it fitted.
        give_back: undoes that.

    Returns:
        The node of each, with what they ask for taken; None, and nothing taken.
    """
    for attempt in _TRIES.get(strategy, (strategy,)):
        if attempt == "STRICT_SPREAD" and len(nodes) < count:
            continue
        found = _search(count, attempt, nodes, take, give_back)
        if found is not None:
            return found
    return None


def _search(
    count: int,
    strategy: str,
    nodes: Sequence[str],
    take: Callable[[int, str], bool],
    give_back: Callable[[int, str], None],
) -> list[str] | None:
    chosen: list[str] = []
    left = [iter(_candidates(strategy, chosen, nodes))]
    for _ in range(_STEPS + count):
        if len(chosen) == count:
            return chosen
        node = next((each for each in left[-1] if take(len(chosen), each)), None)
        if node is not None:
            chosen.append(node)
            left.append(iter(_candidates(strategy, chosen, nodes)))
            continue
        left.pop()
        if not left:
            return None
        give_back(len(chosen) - 1, chosen.pop())
    while chosen:
        give_back(len(chosen) - 1, chosen.pop())
    return None


def _candidates(strategy: str, chosen: Sequence[str], nodes: Sequence[str]) -> Sequence[str]:
    """The nodes for the next thing, best first."""
    if strategy == "STRICT_PACK":
        return chosen[:1] or nodes
    if strategy == "STRICT_SPREAD":
        return [node for node in nodes if node not in chosen]
    if strategy == "SPREAD":
        return sorted(nodes, key=chosen.count)
    return sorted(nodes, key=lambda node: node not in chosen)

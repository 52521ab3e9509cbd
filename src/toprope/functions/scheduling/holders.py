"""Holders of the resources of a session: instances, with or without a handle, and workers for functions.

Both backends make them, for messages about shortages, `yr.list_instances` and `toprope status`. All of it is ours;
users' programs read the keys of `as_dict`, so they stay. Tests: tests/functions/test_functions_semantics.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Holder", "held_by"]


@dataclass(frozen=True)
class Holder:
    """An instance, or a worker for functions.

    Attributes:
        id: names it.
        of: its class; "" for a worker for functions.
        state: its state.
        node: where it is.
        pid: its process; 0 before there is one.
        cpu: millicores that it holds.
        memory: MB that it holds.
        cards: numbers of its cards by vendor.
        resources: amounts of named resources.
        name, namespace: of a named instance.
        handles: handles to it in the program; None where another process may have one, too.
    """

    id: str
    of: str = ""
    state: str = ""
    node: str = ""
    pid: int = 0
    cpu: int = 0
    memory: int = 0
    cards: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    resources: Mapping[str, float] = field(default_factory=dict)
    name: str = ""
    namespace: str = ""
    handles: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """The entry of `list_instances`."""
        return {
            "id": self.id, "class": self.of, "state": self.state, "node": self.node, "pid": self.pid,
            "resources": {"CPU": self.cpu, "Memory": self.memory, **self.resources},
            "cards": {vendor: list(ids) for vendor, ids in self.cards.items()},
            "name": self.name, "namespace": self.namespace, "handles": self.handles,
        }  # fmt: skip

    @property
    def amounts(self) -> str:
        """Format the held amounts."""
        cards = [f"{vendor} {', '.join(map(str, ids))}" for vendor, ids in self.cards.items() if ids]
        named = [f"{key} {amount:g}" for key, amount in self.resources.items()]
        return ", ".join([f"{self.cpu} millicores", f"{self.memory} MB", *cards, *named])


def held_by(holders: Iterable[Holder]) -> str:
    """The holders in a message about a shortage, those of one class and the same amounts in one line; "" for none."""
    alike: dict[tuple[str, str, bool], list[Holder]] = {}
    for each in holders:
        amounts = each.amounts
        alike.setdefault((each.of, amounts, each.handles == 0 and bool(each.of)), []).append(each)
    if not alike:
        return ""
    lines = []
    for (of, amounts, is_lost), group in alike.items():
        ids = [each.name or each.id for each in group]
        shown = ", ".join(ids) if len(ids) <= 3 else f"{ids[0]} ... {ids[-1]}"
        what = f"{of} ({shown})" if of else "worker for functions"
        apiece = " each" if len(group) > 1 else ""
        lines.append(f"\n\t{len(group)} x {what}: {amounts}{apiece}{', the program has no handle any more' * is_lost}")
    return (
        f"\nheld by:{''.join(lines)}\ndo: end some with terminate() or yr.kill_instance(id), set "
        "Config(free_unreferenced=True) to end those without a handle, or offer more (toprope start, Config.num_cpus)"
    )

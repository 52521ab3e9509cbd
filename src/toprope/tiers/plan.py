"""From the order of groups, sizes, budgets and speeds to placement, prefetch and predicted seconds. Pure.

plan(groups, order, budgets, links) -> Plan        refuses with PlanError before anything is moved
"""

from __future__ import annotations

from collections.abc import Sequence

from toprope.tiers.plan_model import (
    Budgets,
    Group,
    Home,
    Link,
    Links,
    Load,
    Member,
    Part,
    Plan,
    Traffic,
    Use,
    training_order,
    uses,
)

__all__ = [
    "Budgets",
    "Group",
    "Home",
    "Link",
    "Links",
    "Load",
    "Member",
    "Part",
    "Plan",
    "Traffic",
    "Use",
    "plan",
    "training_order",
    "uses",
]


def plan(
    groups: Sequence[Group],
    order: Sequence[Use | str],
    budgets: Budgets,
    links: Links,
    *,
    training: bool = False,
    stored: bool = True,
    slots: int | None = None,
) -> Plan:
    """The plan of a step that repeats.

    Args:
        groups: what is moved.
        order: the uses of one step (for training `training_order(names)`); names alone are forward runs.
        budgets: how many bytes each tier may hold.
        links: the speeds between them.
        training: gradients, optimizer states and saved activations are placed and moved too, and weights change.
        stored: the weights lie on the disk already, as safetensors; reading them in place takes no room there.
        slots: how many slots the ring has, at least 2; None for what is fastest.

    Raises:
        PlanError: something cannot fit, with how much would suffice; or the order names an unknown group.
    """
    raise NotImplementedError

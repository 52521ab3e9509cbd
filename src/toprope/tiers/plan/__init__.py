"""From the order of groups, sizes, budgets and speeds to placement, prefetch and predicted seconds. Pure.

    plan(groups, order, budgets, links) -> Plan        refuses with PlanError before anything is moved

`model` has the input and the result, `units` the things to place, `search` the choice, `placement` and `clock` the
seconds of one choice, `budgets` the values of "auto", `layout` the groups of a model folder, `links` measured speeds,
`report` the table and the picture.
"""

from toprope.tiers.plan.model import (
    Budgets,
    Group,
    Home,
    Link,
    Links,
    Load,
    Member,
    Part,
    Plan,
    LinkBytes,
    Use,
    training_order,
    uses,
)
from toprope.tiers.plan.planner import SMALL, plan

__all__ = [
    "SMALL",
    "Budgets",
    "Group",
    "Home",
    "Link",
    "Links",
    "Load",
    "Member",
    "Part",
    "Plan",
    "LinkBytes",
    "Use",
    "plan",
    "training_order",
    "uses",
]

"""Planner: from groups, their order, budgets and bandwidths to placement, prefetch and predicted seconds. Pure.

    plan(groups, order, budgets, links) -> Plan        raises PlanError before anything is moved

`attach` calls it with a model's groups, `toprope tiers plan` with those of a folder. `model` has input and result,
`units` the parts that are placed, `search` the search, `placement` and `clock` the predicted time of one placement,
`budgets` the values of "auto", `layout` the groups of a model folder, `links` measured bandwidths, `report` the table
and the picture. Tests: tests/tiers/test_tiers_plan.py, tests/tiers/test_tiers_layout.py.
"""

import warnings

from toprope.tiers.plan.model import (
    Budgets,
    Group,
    Home,
    Link,
    LinkBytes,
    Links,
    Load,
    Member,
    Part,
    Plan,
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
    "LinkBytes",
    "Links",
    "Load",
    "Member",
    "Part",
    "Plan",
    "Use",
    "plan",
    "training_order",
    "uses",
]


def __getattr__(name: str) -> object:
    if name != "Traffic":  # deprecated in 0.1
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn("toprope.tiers.plan.Traffic is LinkBytes now", DeprecationWarning, stacklevel=2)
    return LinkBytes

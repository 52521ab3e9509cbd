"""Routing of outputs over the instances of the next stage; pure.

For users (`BalanceConfig`), who pass it to `set_output`; `run_context` labels the messages by it, and the labels decide
which instance gets a message. Public names, policies and the limit of elements are those of CANN's
`dataflow.flow_func`; `refusal` and `labels` are toprope's own. Tests: tests/flow/test_flow_balance.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from toprope.flow.exceptions import UDF_PARAM_INVALID, DfException

__all__ = ["AffinityPolicy", "BalanceConfig"]

_MOST = 65536


class AffinityPolicy(IntEnum):
    """Part of a matrix that goes to one instance."""

    NO_AFFINITY = 0
    """Each element anywhere."""

    ROW_AFFINITY = 1
    """A row together."""

    COL_AFFINITY = 2
    """A column together."""


class BalanceConfig:
    """A matrix that outputs are elements of.

    Args:
        row_num, col_num: its size.
        affinity_policy: the part of it that goes to one instance.

    Raises:
        DfException: the size is 0 or above 65536 elements (164000).
    """

    def __init__(
        self, row_num: int, col_num: int, affinity_policy: AffinityPolicy = AffinityPolicy.NO_AFFINITY
    ) -> None:
        if not (row_num > 0 and col_num > 0 and row_num * col_num <= _MOST):
            raise DfException(f"a matrix of {row_num} x {col_num} must have 1 to {_MOST} elements", UDF_PARAM_INVALID)
        self.row_num = row_num
        self.col_num = col_num
        self.affinity_policy = AffinityPolicy(affinity_policy)
        self._positions: list[tuple[int, int]] = []

    def set_data_pos(self, positions: Sequence[tuple[int, int]]) -> None:
        """Set the positions of the outputs in the matrix: a row and a column for each.

        Raises:
            DfException: one is outside (164000).
        """
        for row, col in positions:
            if not (0 <= row < self.row_num and 0 <= col < self.col_num):
                raise DfException(f"({row}, {col}) is outside {self.row_num} x {self.col_num}", UDF_PARAM_INVALID)
        self._positions = list(positions)

    def get_inner_config(self) -> BalanceConfig:
        """The config itself, which the reference keeps in C++."""
        return self

    def refusal(self, balance: str) -> str:
        """Return why a node cannot use it; empty if it can.

        Args:
            balance: "scatter" or "gather", as the node was set; empty for neither.
        """
        if not balance:
            return "the node has neither set_balance_scatter nor set_balance_gather"
        is_free = self.affinity_policy is AffinityPolicy.NO_AFFINITY
        if is_free != (balance == "scatter"):
            return f"a node with set_balance_{balance} cannot use {self.affinity_policy.name}"
        return ""

    def labels(self) -> list[tuple[int, int]]:
        """For each position its data label, and its route label, by which an instance is chosen."""
        found = []
        for row, col in self._positions:
            position = row * self.col_num + col
            route = {AffinityPolicy.ROW_AFFINITY: row, AffinityPolicy.COL_AFFINITY: col}
            found.append((position + 1, 1 + route.get(self.affinity_policy, position)))
        return found

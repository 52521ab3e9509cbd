"""Advice on operators that leave the card or are slow on it; pure, from operator_advice.toml.

The run report (sim/metrics/totals.py) and the port's report (port/rules/operators.py) show it. A new operator is a row
of the table, with its source. Tests: tests/port/test_port_operators.py; operators that are slow in
tests/cli/test_report.py.
"""

from __future__ import annotations

import functools
import tomllib
from importlib import resources

from toprope.messages import Message
from toprope.support.operator_kinds import kind_of

__all__ = ["instead", "slow"]


def instead(operator: str) -> str:
    """Return what to write instead of an operator on the host ("aten::hypot.out"); empty where no source says it."""
    return _find("instead", operator)


def slow(operator: str) -> str:
    """Return why an operator is slow on the card, with the source; empty where no source says that it is.

    Args:
        operator: its name without overload, such as "aten::upsample_linear1d".
    """
    known = _find("slow", operator)
    if not known and kind_of(operator).engine == "aicpu":
        return Message("runs on the card's own CPU (AI CPU), not on its cores (operator_kinds.toml)")
    return known


def _find(table: str, operator: str) -> str:
    name = operator.removeprefix("aten::")
    rows = _tables()[table]
    return rows.get(name) or rows.get(f"{name.partition('.')[0]}.*", "")


@functools.cache
def _tables() -> dict[str, dict[str, str]]:
    path = resources.files("toprope.support").joinpath("operator_advice.toml")
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    return {
        table: {name: _text(table, row) for row in data[table] for name in row["operators"].split()}
        for table in ("instead", "slow")
    }


def _text(table: str, row: dict[str, str]) -> str:
    text = Message(row["text"])  # scripts/messages.py reads the file for the catalogues
    return text if table == "instead" else Message("{text} ({source})", text=text, source=row["source"])

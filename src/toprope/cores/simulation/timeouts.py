"""The time at which a card would report that an operator does not end, in virtual time; pure.

`simulation.simulate` ends a run that is stuck with it. Times and codes are the vendor's: they are in timeouts.toml,
with its pages. Tests: tests/cores/test_cores_simulate.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from toprope.cores.model import Card, Op, OpId, Program

__all__ = ["TimeOut", "first_time_out", "seconds_of"]


@dataclass(frozen=True, slots=True)
class TimeOut:
    """The report of a card that has given up on an operator.

    Attributes:
        op: the operator.
        seconds: how long the card waits for it; a default value, which a program can change.
        at_microseconds: the moment of the report, on the clock of the run.
        code: the vendor's code: 507034, 507014 or 507048.
        setting: what decides `seconds`: "operator time-out" or "HCCL_EXEC_TIMEOUT".
    """

    op: OpId
    seconds: float
    at_microseconds: float
    code: int
    setting: str


def seconds_of(program: Program, id: OpId) -> tuple[float, str]:
    """Seconds that the card waits for this operator, and the name of the setting.

    The values and their sources are in timeouts.toml.
    """
    op, row = program.op(id), _row(program.card_of(id))
    if op.collective is None:
        return float(row["operator"]), "operator time-out"
    on_cores = any(op.cores)
    return float(row["aiv" if on_cores else "collective"]), "HCCL_EXEC_TIMEOUT"


def first_time_out(program: Program, begun: Mapping[OpId, float]) -> TimeOut | None:
    """The first report of a run in which nothing goes on any more.

    Args:
        program: what runs.
        begun: the operators that have begun and not finished, and when each did, in microseconds.

    Returns:
        None where nothing has begun: then no operator's time-out ever ends the wait.
    """
    reports = []
    for id, begin in begun.items():
        seconds, setting = seconds_of(program, id)
        reports.append(TimeOut(id, seconds, begin + seconds * 1e6, _code(program.op(id)), setting))
    return min(reports, key=lambda each: (each.at_microseconds, each.op), default=None)


def _row(card: Card) -> Mapping[str, Any]:
    data = _data()
    chip = card.chip.removeprefix("Ascend")
    known = [name for name in data["chips"] if chip.startswith(name)]
    row: Mapping[str, Any] = data["chips"][max(known, key=len)] if known else data["unknown"]
    return row


def _code(op: Op) -> int:
    kind = "cube" if op.cube else "vector" if op.vector else "none"
    return int(_data()["codes"][kind]["value"])


@cache
def _data() -> dict[str, Any]:
    import tomllib
    from importlib import resources

    return tomllib.loads(
        resources.files("toprope.cores.simulation").joinpath("timeouts.toml").read_text(encoding="utf-8")
    )

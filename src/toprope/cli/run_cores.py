"""The check of `toprope run --check-cores`: what the program did to the simulated cards, as a schedule."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toprope.cli.choose import Choice
from toprope.errors import ScheduleError, UsageError

__all__ = ["CoresCheck", "check", "of_run"]

_WORLD = "all cards"
_UNDECIDED = 3


@dataclass(frozen=True)
class CoresCheck:
    """What the check of a run found.

    Attributes:
        exit_status: as that of `toprope cores check`.
        text: for a reader, whole lines.
        facts: the same as plain data.
    """

    exit_status: int
    text: str
    facts: dict[str, Any]


def check(choice: Choice) -> None:
    """Makes sure, before the program starts, that there will be something to check.

    Raises:
        UsageError: the program gets no simulated card.
    """
    if choice.spec is None:
        raise UsageError(
            "--check-cores checks what a program does to the simulated card, and this program gets none.",
            "it gets " + ("a real card" if choice.device == "npu" else f"--device {choice.device}"),
            "add --device sim, or give the profiler's CSV to toprope cores check",
        )


def of_run(folder: Path, choice: Choice) -> CoresCheck:
    """Checks what the processes of a run recorded in its folder."""
    from toprope.cli.cores_text import as_dict, exit_status, report
    from toprope.cores import record
    from toprope.cores.check import check as check_program
    from toprope.sim.tracing import read_run

    assert choice.spec is not None
    try:
        program = record.from_traces(read_run(folder), choice.spec.chip, _WORLD, "the run")
    except ScheduleError as error:
        return CoresCheck(
            _UNDECIDED, f"toprope: the cores were not checked: {error}\n", {"verdict": "unknown", "proof": error.what}
        )
    result = check_program(program)
    text = "toprope: " + report(program, result)
    if any(group.name == _WORLD for group in program.communicators):
        text += "note: the record does not name communicators: all collectives are taken to be of one, of all cards\n"
    return CoresCheck(exit_status(result), text, as_dict(program, result, ["the run"]))

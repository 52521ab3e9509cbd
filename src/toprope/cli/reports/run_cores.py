"""The check of `toprope run --check-cores`: what the program did to the simulated cards, as a schedule.

Called by `cli.run`. The schedule is made in `toprope.cores.record`, the verdict by its checker, the text in
`cli.output.cores_text`. Exit statuses are those of `toprope cores check`; a record that cannot be checked is 3, never
safe. Tests: tests/cli/test_cli_cores.py, tests/cli/test_wrong_use.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toprope.cli.launch.select_target import Choice
from toprope.errors import ScheduleError, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["CoresCheck", "check", "of_run", "reason"]

_WORLD = "all cards"
_UNDECIDED = 3


@dataclass(frozen=True)
class CoresCheck:
    """The result of the check of a run.

    Attributes:
        exit_status: as of `toprope cores check --fail-on`.
        text: for a reader.
        facts: the same as plain data.
    """

    exit_status: int
    text: tuple[RenderableType, ...]
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


def reason(done: CoresCheck | None) -> str:
    """The line that says, without a report, why the check gives another exit status than 0; "" where it does not."""
    from toprope.terminal import render

    return render(done.text[0]) if done is not None and done.exit_status else ""


def of_run(folder: Path, choice: Choice, fail_on: str) -> CoresCheck:
    """Check what the processes of a run recorded in its folder.

    Args:
        folder: the run's.
        choice: the simulated cards.
        fail_on: the discipline that decides the exit status; under D0 most programs with two busy streams deadlock.
    """
    from rich.text import Text

    from toprope.cli.output.cores_text import as_dict, exit_status, report
    from toprope.cores import record
    from toprope.cores.check import check as check_program
    from toprope.cores.model import Discipline
    from toprope.sim.tracing.tracer import read_run

    assert choice.spec is not None
    discipline = Discipline(fail_on)
    try:
        program = record.from_traces(read_run(folder), choice.spec.chip, _WORLD, "the run")
    except ScheduleError as error:
        text = (f"toprope: the cores were not checked: {error}",)
        return CoresCheck(_UNDECIDED, text, {"verdict": "unknown", "proof": error.what})
    result = check_program(program)
    first, *rest = report(program, result).renderables
    assert isinstance(first, Text)
    items = [Text("toprope: ").append_text(first), *rest]
    if any(group.name == _WORLD for group in program.communicators):
        items.append(
            "note: the record does not name communicators: all collectives are taken to be of one, of all cards"
        )
    facts = as_dict(program, result, ["the run"], fail_on=discipline)
    return CoresCheck(exit_status(result, fail_on=discipline), tuple(items), facts)

"""The file of `toprope run --report`, and the exit status of `--fail-on`.

Called by `cli.run`. The facts come from `sim.rehearsal.facts`, whose schema is the interface of the JSON for users, as
are the kinds of `--fail-on`; `rehearsal_page` writes the HTML. A file that cannot be written is an error before the
program starts. Tests: tests/cli/test_rehearsal_file.py, tests/cli/test_wrong_use.py.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from toprope.cli.launch.select_target import Choice
from toprope.cli.reports.run_report import Outcome, finding_text
from toprope.errors import UsageError
from toprope.messages import Message, local
from toprope.sim.rehearsal.facts import TROUBLES, Trouble
from toprope.whole_file import check_named, writing_named

__all__ = ["as_dict", "check", "failures", "smallest", "write"]

_STDOUT = "-"
_ENDINGS = (".html", ".json")
_LARGE = 1 << 20
"""Bytes of the smallest block whose line is recorded where no file is asked for: torch_npu's large blocks."""


def check(report_to: Sequence[str], fail_on: str | None, choice: Choice) -> tuple[Trouble, ...]:
    """Make sure, before the program starts, that there will be a report, and return the kinds of `--fail-on`.

    Raises:
        UsageError: the file cannot be written, a kind is not known, or the program gets no simulated card.
    """
    wanted = tuple(kind.strip() for kind in (fail_on or "").split(",") if kind.strip())
    kinds = tuple(kind for kind in TROUBLES if kind in wanted)
    unknown = [kind for kind in wanted if kind not in TROUBLES]
    if unknown or (fail_on is not None and not wanted):
        raise UsageError(
            f"--fail-on {fail_on} names no kind of trouble: {', '.join(unknown)}."
            if unknown
            else "--fail-on is empty.",
            do=f"name some of {', '.join(TROUBLES)}",
        )
    option = "--report" if report_to else "--fail-on" if kinds else ""
    if option and choice.spec is None:
        raise UsageError(
            f"{option} is about the simulated card, and this program gets none.",
            "it gets " + ("a real card" if choice.device == "npu" else f"--device {choice.device}"),
            f"add --device sim, or leave out {option}",
        )
    for each in report_to:
        _check_file(each)
    return kinds


def _check_file(name: str) -> None:
    """Refuse a file for the report that cannot be written, or that has no known ending."""
    if name == _STDOUT:
        return
    if not name.endswith(_ENDINGS):
        raise UsageError(f"--report {name} is neither a page nor JSON.", do="name a FILE.html, a FILE.json or -")
    try:
        check_named(name)
    except OSError as error:
        raise UsageError(
            f"the report cannot be written to {name}: {error.strerror}.", do="name a file in a folder of yours"
        ) from None


def smallest(quiet: bool, report_to: Sequence[str], troubles: tuple[Trouble, ...]) -> int | None:
    """Bytes of the smallest block whose line is recorded; None where nobody will read the record."""
    if report_to or troubles:
        return 0
    return None if quiet else _LARGE


def as_dict(outcome: Outcome) -> dict[str, Any]:
    """The facts of a run as plain data, which `toprope.sim.rehearsal.facts.schema()` describes."""
    return {
        "format": 1,
        "exit_status": outcome.status,
        "seconds": round(outcome.seconds, 3),
        "cards": [one.as_dict() for one in outcome.rehearsals],
        "cores": None if outcome.cores is None else outcome.cores.facts,
        "notes": list(outcome.notes),
    }


def write(report_to: Sequence[str], outcome: Outcome) -> str:
    """Write the report to each file, and return what there is to say about it on stderr."""
    return "".join(_write(each, outcome) for each in report_to)


def _write(name: str, outcome: Outcome) -> str:
    """Write the report to one file or to stdout; return the problem, "" where there is none."""
    try:
        if name.endswith(".html"):
            from toprope.cli.reports.rehearsal_page import page_of

            _put(name, page_of(outcome))
        elif name == _STDOUT:
            sys.stdout.write(json.dumps(as_dict(outcome), ensure_ascii=False) + "\n")
            sys.stdout.flush()
        else:
            text = json.dumps(as_dict(outcome), ensure_ascii=False, indent=1) + "\n"
            _put(name, text)
    except OSError as error:
        text = Message("toprope: the report could not be written to {name}: {error}", name=name, error=error.strerror)
        return local(text) + "\n"
    return ""


def _put(name: str, text: str) -> None:
    with writing_named(name) as file:
        file.write(text.encode())


def failures(outcome: Outcome, troubles: tuple[Trouble, ...]) -> str:
    """The line that says why `--fail-on` makes the run fail; "" where it does not."""
    found = [finding for one in outcome.rehearsals for finding in one.of(*troubles)]
    if not found:
        return ""
    kinds = ", ".join(dict.fromkeys(one.kind for one in found))
    more = Message("; and {number} more", number=len(found) - 1) if len(found) > 1 else ""
    first = finding_text(found[0], outcome.folder)
    return (
        local(Message("toprope: failed by --fail-on {kinds}: {first}{more}", kinds=kinds, first=first, more=more))
        + "\n"
    )

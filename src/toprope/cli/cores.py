"""`toprope cores`: can streams deadlock, which limits prevent it, a picture of a run, and what error codes mean.

Options and exit statuses; the proofs are in `toprope.cores`, the text in `cli.output.cores_text` and `cores_sarif`,
codes in `cli.cores_explain`. Statuses (0 safe, 1 deadlock or error, 2 unreadable, 3 undecided), JSON and SARIF are
interfaces for CI: docs/cores.md. Modules of `toprope.cores` are imported in the commands, for a fast `--help`. Tests:
tests/cli/test_cli_cores.py.
"""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toprope.cli.group import HELP, chip_names, group
from toprope.cores.model import Discipline
from toprope.errors import UsageError
from toprope.whole_file import write_named

if TYPE_CHECKING:
    from toprope.cores.check import Result
    from toprope.cores.model import Program
    from toprope.cores.simulation.timeline import Timeline

__all__ = ["app"]


app = group()

Files = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE",
        show_default=False,
        help="A schedule (JSON), a trace of toprope run --trace, or the kernel_details.csv of each rank.",
    ),
]


class Assume(StrEnum):
    """Assumption about operators of which no source says how many blocks they need at once."""

    ALL = "all-blocks"
    ONE = "one-block"


Assumed = Annotated[
    Assume,
    typer.Option(help="Need of operators that no source knows; with all-blocks no deadlock is called safe."),
]
Chip = Annotated[
    str,
    typer.Option(
        metavar="CHIP", autocompletion=chip_names, help="Chip of the cards, for traces and CSV, which do not say it."
    ),
]
World = Annotated[
    str, typer.Option(metavar="NAME", help="The communicator of all cards, where a trace does not name a collective's.")
]


@app.callback()
def _cores() -> None:
    """Streams that share the cube and vector cores of a card: deadlocks found before they happen, limits, pictures.

    Docs: toprope explain cores.
    """


@app.command(short_help="Can the streams deadlock? Why, and what makes them safe.", context_settings=HELP)
def check(
    files: Files,
    discipline: Annotated[
        Discipline, typer.Option(help="How cards hand out cores. What is safe under D0 is safe under all.")
    ] = Discipline.D0,
    seconds: Annotated[
        float, typer.Option(metavar="N", min=0, help="How long the exact test may take; then it is not decided.")
    ] = 10.0,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings end with 1, as errors do.")] = False,
    fail_on: Annotated[
        Discipline | None,
        typer.Option(help="End with 1 only where this way to hand out cores can deadlock. [default: as --discipline]"),
    ] = None,
    assume: Assumed = Assume.ALL,
    chip: Chip = "",
    communicator: World = "",
    as_json: Annotated[bool, typer.Option("--json", help="The same facts as JSON.")] = False,
    sarif: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write SARIF 2.1.0, which CI systems show; - is stdout.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report with the picture as one HTML file.")
    ] = None,
) -> None:
    """Say whether the streams can deadlock, why, and what makes them safe.

    The exit status is 0 for safe, 1 for a deadlock or a finding of level error, 2 for a file that cannot be read, 3
    where it could not be decided in time.
    """
    from toprope.cli.output.cores_text import as_dict, exit_status, report
    from toprope.terminal import render, say, show

    stdout = sarif is not None and str(sarif) == "-"
    if stdout and as_json:
        raise UsageError("--json and --sarif - both write to stdout.", do="give --sarif the name of a file")
    program = _read(files, chip, communicator, assume)
    result = _check(program, discipline, seconds)
    names = [str(file) for file in files]
    if sarif is not None:
        from toprope.cli.output.cores_sarif import sarif as as_sarif

        _write(sarif, json.dumps(as_sarif(program, result, names), ensure_ascii=False, indent=2) + "\n")
    if html is not None:
        from toprope.cores.simulation.timeline_svg import page

        headline, timeline = _picture(program, result)
        _write(html, page(", ".join(names), render(report(program, result)), [(headline, timeline)]))
    if as_json:
        say(
            json.dumps(as_dict(program, result, names, strict=strict, fail_on=fail_on), ensure_ascii=False, indent=2)
            + "\n"
        )
    elif not stdout:
        show(report(program, result))
    raise typer.Exit(exit_status(result, strict=strict, fail_on=fail_on))


@app.command(short_help="Limits under which they cannot, and are done early.", context_settings=HELP)
def plan(
    files: Files,
    as_json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the plan as JSON; - is stdout.")
    ] = None,
    script: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write Python that sets the limits; - is stdout.")
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="The shortest plan that the exact test proves safe; needs OR-tools.")
    ] = False,
    seconds: Annotated[float, typer.Option(metavar="N", min=0, help="How long the exact tests may take.")] = 10.0,
    assume: Assumed = Assume.ALL,
    chip: Chip = "",
    communicator: World = "",
) -> None:
    """Give the limits that the streams need so that they cannot deadlock, each with its reason.

    Streams that are safe without a limit get none.
    """
    from toprope.cli.output.cores_text import plan_text
    from toprope.cores.planning.safe import plan_program
    from toprope.terminal import show

    program = _read(files, chip, communicator, assume)
    if exact:
        from toprope.cores.planning.exact import plan_exact

        found = plan_exact(program, seconds=seconds)
    else:
        found = plan_program(program, seconds=seconds)
    if as_json is not None:
        _write(as_json, json.dumps(found.to_json(), ensure_ascii=False, indent=2) + "\n")
    if script is not None:
        _write(script, found.script())
    if "-" not in (str(as_json), str(script)):
        show(plan_text(found))


@app.command(short_help="Draw who holds which cores when.", context_settings=HELP)
def show(
    files: Files,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the picture as SVG; - is stdout.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write it as one HTML file; - is stdout.")] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="The order of the run. [default: the first of 300 that ends in a deadlock, or 0]"
        ),
    ] = None,
    discipline: Annotated[Discipline, typer.Option(help="How the cards hand out cores.")] = Discipline.D0B,
    assume: Assumed = Assume.ALL,
    chip: Chip = "",
    communicator: World = "",
) -> None:
    """Run the schedule on a virtual clock and draw who holds which cores when."""
    from toprope.cores.simulation.simulate import hunt, simulate
    from toprope.cores.simulation.timeline import of_run

    if svg is None and html is None:
        raise UsageError("there is no file for the picture.", do="add --svg FILE or --html FILE")
    program = _read(files, chip, communicator, assume)
    run = simulate(program, discipline, seed) if seed is not None else hunt(program, discipline)
    if run is None:
        run = simulate(program, discipline, 0)
    timeline = of_run(run)
    names = ", ".join(str(file) for file in files)
    told = f"{names}, {run.discipline}, seed {run.seed}"
    if svg is not None:
        from toprope.cores.simulation.timeline_svg import svg as draw

        _write(svg, draw(timeline, subtitle=told))
    if html is not None:
        from toprope.cores.simulation.timeline_svg import page

        _write(html, page(names, timelines=[("", timeline)], subtitle=told))
    if "-" not in (str(svg), str(html)):
        end = f"deadlock after {run.microseconds:.3g} us" if run.deadlocked else "every operator finished"
        after = run.time_out
        if after is not None:
            end += f"; the card would report {after.code} after {after.seconds:.0f} s"
        typer.echo(f"{told}: {end}")


@app.command(short_help="What codes and logs say about core limits.", context_settings=HELP)
def explain(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CODE|LOGFILE]...",
            show_default=False,
            help='A code (507034), a line of a log ("..."), a log file, or - for stdin. Without: all that is known.',
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same facts as JSON.")] = False,
) -> None:
    """Say what time-outs and lines of a log have to do with core limits, and what to try."""
    from toprope import terminal
    from toprope.cli import cores_explain

    found = cores_explain.look_up(words or [])
    if as_json:
        terminal.say(json.dumps(cores_explain.as_dicts(found), ensure_ascii=False, indent=2) + "\n")
    else:
        terminal.show(cores_explain.text(found))


def _read(files: list[Path], chip: str, communicator: str, assume: Assume) -> Program:
    from toprope.cores import record

    program = record.read(*files, chip=chip, communicator=communicator)
    return program if assume is Assume.ALL else record.assuming_one_block(program)


def _check(program: Program, discipline: Discipline, seconds: float) -> Result:
    from toprope.cores.check import check

    return check(program, discipline=discipline, seconds=seconds)


def _picture(program: Program, result: Result) -> tuple[str, Timeline]:
    """The deadlock that was found; else one run."""
    from toprope.cores.simulation.simulate import simulate
    from toprope.cores.simulation.timeline import of_run, of_state

    if result.witness is not None:
        return "", of_state(result.witness)
    return "One run of many", of_run(simulate(program, result.discipline))


def _write(path: Path, text: str) -> None:
    if str(path) == "-":
        sys.stdout.write(text)
        return
    write_named(path, text)

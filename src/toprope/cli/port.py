"""`toprope port`: CUDA-only code becomes code that runs on NPU, CUDA and CPU.

Options, exit statuses and the order of the work, which is in `toprope.port`: survey, port, compare with trace and
baseline, write, report. Statuses (1 sites with --check, 2 wrong call, 3 unreadable files) are an interface for CI:
docs/port.md. Nothing is written without --write. Tests: tests/port/test_port_cli.py, tests/port/test_port_options.py.
"""

from __future__ import annotations

import json
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from toprope.cli.group import chip_names
from toprope.errors import UsageError
from toprope.messages import Message
from toprope.whole_file import write_named

if TYPE_CHECKING:
    from toprope.port.finding import Ported
    from toprope.port.project.folders import Pattern

__all__ = ["app"]

_READING = Message("all files are read before the first one is ported")


class PortCommand(TyperCommand):
    """Takes `--vendor` alone, too: its value, if there is one, comes after "="."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give a `--vendor` without a value an empty one."""
        return super().parse_args(ctx, ["--vendor=" if each == "--vendor" else each for each in args])


app = typer.Typer(
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Format(StrEnum):
    """How the report is written."""

    TEXT = "text"
    JSON = "json"
    SARIF = "sarif"
    HTML = "html"


@app.command(cls=PortCommand)
def port(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH", show_default=False, help="Files and folders.")],
    diff: Annotated[bool, typer.Option("--diff", help="Show what would be changed.")] = False,
    write: Annotated[bool, typer.Option("--write", help="Change the files.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Change nothing; end with 1 where there are sites.")] = False,
    select: Annotated[
        list[str] | None, typer.Option(metavar="CODES", help="Only these rules, such as TR006,TR05.")
    ] = None,
    ignore: Annotated[list[str] | None, typer.Option(metavar="CODES", help="All rules but these.")] = None,
    form: Annotated[Format, typer.Option("--format", help="How the report is written.")] = Format.TEXT,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report there instead of stdout.")
    ] = None,
    vendor: Annotated[
        str | None,
        typer.Option(
            metavar="",
            show_default=False,
            help="--vendor or --vendor=FOLDER: ported code calls one file that is put into the program, and needs no "
            "toprope.",
        ),
    ] = None,
    with_trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What toprope run --trace-cuda saw: mark it, and add what only a run shows."),
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The sites in this file are known: --check ends with 0.")
    ] = None,
    write_baseline: Annotated[Path | None, typer.Option(metavar="FILE", help="Write all sites down as known.")] = None,
    backup: Annotated[bool, typer.Option("--backup", help="Keep each old file, with .orig behind its name.")] = False,
    allow_dirty: Annotated[
        bool, typer.Option("--allow-dirty", help="Write although git has changes that are not committed.")
    ] = False,
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOBS", help="Files and folders that are left alone, such as 'old/**,gen_*.py'."),
    ] = None,
    include: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOBS", help="Vendored folders, submodules and records of runs to look at all the same."),
    ] = None,
    chip: Annotated[
        str | None,
        typer.Option(
            metavar="CHIP",
            autocompletion=chip_names,
            help="The chip that operators are looked up for.  [default: 910B3]",
        ),
    ] = None,
    torch_npu: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION", help="Release of torch_npu that they are looked up for.  [default: the newest]"
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(metavar="N", min=1, help="Number of processes.")] = 1,
) -> None:
    """Find what only runs on CUDA, rewrite it for NPU, CUDA and CPU, and say what needs a person.

    Nothing is written unless --write is given. The exit status is 0; with --check it is 1 where there are sites; 2 for
    a wrong call; 3 where a file could not be read, parsed or written (the others are done). More: toprope explain port.
    """  # fmt: skip
    from toprope.port import config
    from toprope.port.project.context import target
    from toprope.port.report import baseline as baselines
    from toprope.port.report import trace
    from toprope.port.runtime import vendor as vendoring
    from toprope.port.runtime.dependency import missing_requirement
    from toprope.port.scan import Choice, port_files, survey
    from toprope.port.write import check_clean
    from toprope.port.write import write as write_file
    from toprope.progress import Progress
    from toprope.terminal import Display

    if diff + write + check > 1:
        raise UsageError("--diff, --write and --check exclude each other.", do="give one of them")
    if baseline is not None and write_baseline is not None:
        raise UsageError("--baseline and --write-baseline exclude each other.", do="give one of them")
    begun = time.perf_counter()
    name = ", ".join(map(str, paths))
    told = config.read(paths)
    choice = Choice(_codes(select) or told.select, _codes(ignore) or told.ignore)
    card = target(chip or told.chip, torch_npu or told.torch_npu)
    vendor = told.vendor if vendor is None else vendor
    excluded, included = _patterns(exclude, told.exclude, told.folder), _patterns(include, told.include, told.folder)
    sites = None if with_trace is None else trace.read(with_trace)
    if baseline is not None:
        baselines.read(baseline)  # before the work: it may be no baseline
    with Display(name) as display:
        display.stage(_READING)  # the first file is done after all have been read
        found = survey(paths, excluded, included)
        files = found.files
        vendored = vendoring.plan(paths, files, vendor)
        runtime = None if vendored is None else vendored.module
        progress = Progress(display.step, total=len(files), unit="file", after=1.0)
        done = list(port_files(files, choice=choice, runtime=runtime, jobs=jobs, card=card, progress=progress.step))
    notes = [f"  the pattern {each.text!r} matches nothing" for each in (*excluded, *included) if not each.used]
    if vendored is None and (missing := missing_requirement(done)):
        notes.append(missing)
    if vendored is not None and vendor:
        notes += [
            f"  {each.path} may not find the file in {vendor}: put that on its path, or leave the folder out (--vendor)"
            for each in done
            if each.changed and vendoring.uses(each) and Path(each.path) in vendored.lost
        ]
    if sites is not None:
        elsewhere = trace.mark(done, sites, choice.leaves)
        notes += [f"  elsewhere  {elsewhere:5}   sites of the trace lie in no file of these"] if elsewhere else []
    if baseline is not None:
        baselines.mark_known(baseline, done)
    if write_baseline is not None:
        number = baselines.write(write_baseline, done, written=write)
        notes.append(f"{number} sites are known from now on: {write_baseline}")
    if write:
        changed = [each for each in done if each.changed]
        if not allow_dirty:
            check_clean(Path(each.path) for each in changed)
        if vendored is not None:
            using = [Path(each.path) for each in changed if vendoring.uses(each)]
            notes += [
                f"{path} written: what ported code calls, and the program's own from now on"
                for path in vendored.put(using)
            ]
        for each in done:
            write_file(each, backup=backup)
    facts: dict[str, Any] = {"written": write, "left_alone": found.left_alone, "card": card}
    _say(_report(form, name, done, diff, notes, facts, time.perf_counter() - begun), output)
    raise typer.Exit(_status(done, check))


def _report(
    form: Format, name: str, done: list[Ported], diff: bool, notes: list[str], facts: dict[str, Any], seconds: float
) -> str:
    """The report in the form that was asked for: text with or without diffs, JSON, SARIF or HTML."""
    import toprope
    from toprope.port import all_rules
    from toprope.port.report import summary

    if form is Format.HTML:
        from toprope.port.report.html import html

        return html(done, name)
    if form is Format.TEXT:
        said = "".join(summary.diff(each) for each in done) if diff else ""
        return said + summary.text(name, done, notes=notes, shown=diff, **facts)
    written = summary.as_dict(name, done, **facts) | {"seconds": round(seconds, 3)}
    if form is Format.SARIF:
        from toprope.port.report.sarif import root_of, sarif

        root = root_of(each.path for each in done) if done else None
        written = sarif(done, toprope.__version__, all_rules().values(), root)
    return json.dumps(written, ensure_ascii=False, indent=2) + "\n"


def _patterns(given: list[str] | None, configured: tuple[str, ...], folder: Path) -> list[Pattern]:
    """The globs of the command, from the working directory, and those of the table, from its folder."""
    from toprope.port.project.folders import Pattern

    asked = [each.strip() for text in given or () for each in text.split(",") if each.strip()]
    return [*(Pattern(each, Path()) for each in asked), *(Pattern(each, folder) for each in configured)]


def _codes(given: list[str] | None) -> tuple[str, ...]:
    return tuple(code.strip().upper() for each in given or () for code in each.split(",") if code.strip())


def _status(done: list[Ported], check: bool) -> int:
    if check and any(not finding.known for each in done for finding in each.sites):
        return 1
    return 3 if any(each.skipped for each in done) else 0


def _say(said: str, output: Path | None) -> None:
    if output is None:
        sys.stdout.write(said)
        return
    write_named(output, said)

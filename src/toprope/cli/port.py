"""`toprope port`: CUDA-only code becomes code that runs on NPU, CUDA and CPU."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toprope.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from toprope.port.finding import Ported

__all__ = ["app"]

app = typer.Typer(
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_PROGRESS_FROM = 100
"""Number of files from which progress is shown on a terminal."""


class Format(StrEnum):
    """How the report is written."""

    TEXT = "text"
    JSON = "json"


@app.command()
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
    backup: Annotated[bool, typer.Option("--backup", help="Keep each old file, with .orig behind its name.")] = False,
    allow_dirty: Annotated[
        bool, typer.Option("--allow-dirty", help="Write although git has changes that are not committed.")
    ] = False,
    jobs: Annotated[int, typer.Option(metavar="N", min=1, help="Number of processes.")] = 1,
) -> None:
    """Find what only runs on CUDA, rewrite it for NPU, CUDA and CPU, and say what needs a person.

    Nothing is written unless --write is given. The exit status is 0; with --check it is 1 where there are sites; 2 for
    a wrong call; 3 where a file could not be read, parsed or written (the others are done).
    """
    from toprope.port import report
    from toprope.port.scan import Choice, find, port_files
    from toprope.port.write import check_clean
    from toprope.port.write import write as write_file

    if diff + write + check > 1:
        raise UsageError("--diff, --write and --check exclude each other.", do="give one of them")
    choice = Choice(_codes(select), _codes(ignore))
    files = find(paths)
    done = list(port_files(files, choice=choice, jobs=jobs, progress=_progress(len(files))))
    if write:
        if not allow_dirty:
            check_clean(Path(each.path) for each in done if each.changed)
        for each in done:
            write_file(each, backup=backup)
    name = ", ".join(map(str, paths))
    if form is Format.JSON:
        said = json.dumps(report.as_dict(name, done, written=write), ensure_ascii=False, indent=2) + "\n"
    else:
        said = "".join(report.diff(each) for each in done) if diff else ""
        said += report.text(name, done, written=write)
    _say(said, output)
    raise typer.Exit(_status(done, check))


def _codes(given: list[str] | None) -> tuple[str, ...]:
    return tuple(code.strip().upper() for each in given or () for code in each.split(",") if code.strip())


def _status(done: list[Ported], check: bool) -> int:
    if check and any(each.findings for each in done):
        return 1
    return 3 if any(each.skipped for each in done) else 0


def _progress(total: int) -> Callable[[int], None] | None:
    """Shows on a terminal how far it is."""
    if total < _PROGRESS_FROM or not sys.stderr.isatty():
        return None

    def show(number: int) -> None:
        if number % 25 == 0 or number == total:
            sys.stderr.write(f"\r{number} of {total} files" + ("\r\x1b[K" if number == total else ""))
            sys.stderr.flush()

    return show


def _say(said: str, output: Path | None) -> None:
    if output is None:
        sys.stdout.write(said)
        return
    try:
        output.write_text(said, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{output} cannot be written: {error.strerror}.", do="name a file in a folder that is yours"
        ) from None

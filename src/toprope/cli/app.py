"""The top of the command line: the table of verbs, `--version`, and how errors end a command.

Started as `toprope` or `python -m toprope`. A new verb is a row of `VERBS` and a file with its `app`; its help needs a
translation in locale/zh.po (scripts/messages.py) and a place in docs/command_help.md (scripts/reference.py). Exit
statuses are an interface: 0 ok, 1 findings, 2 usage, 3 environment. A verb's file must not be imported before the verb
is used.

Tests: tests/cli/test_cli.py (statuses; `--help` stays fast), tests/cli/test_wrong_use.py (errors),
tests/cli/test_language.py, tests/cli/test_completion.py.
"""

from __future__ import annotations

import difflib
import errno
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import toprope
from toprope.cli.completion import VARIABLE
from toprope.cli.group import group
from toprope.cli.help_text import localize
from toprope.cli.standard_streams import guarded
from toprope.errors import EnvironmentProblem, PackageError, SettingError, TopropeError
from toprope.messages import Message, local, shown_in

__all__ = ["VERBS", "main"]

VERBS = {
    "run": "Run a program on a simulated or a real card, and report what it did to it.",
    "estimate": "Estimate a model on a chip without either: parameters, memory at the peak, time of a step.",
    "doctor": "Say why there is no NPU and what does not fit together; explain an error code.",
    "cores": "Prove that streams cannot deadlock for cores, or show how; plan limits, draw, explain.",
    "tiers": "Plan a model larger than the memory of a device: what stays, what is streamed, how fast.",
    "calibrate": "Fit the times of estimates to a profile of a real card.",
    "verify": "Write a file that measures a card, and compare what it found with toprope's tables.",
    "port": "Rewrite a program that only runs on CUDA for NPU, CUDA and CPU, and say what needs a person.",
    "edit": "Edit pictures by instruction, one or many, each with everything needed to repeat it.",
    "ui": "Serve a page that edits pictures by instruction, with a tree of steps, progress and the device's state.",
    "serve": "Serve a graph of models and functions over HTTP.",
    "images": "Write a tiny model that edits pictures, to try everything offline.",
    "devices": "List the devices that a program would see, and why there are no others.",
    "cache": "Show what toprope keeps on this machine, such as the compiled card, with size and age; clear it.",
    "completion": "Print the script that completes toprope's commands and options in bash, zsh or fish.",
    "explain": "Print a page of the documentation, such as the one that an error names; list the pages.",
    "start": "Start a deployment: settings and cards for this user's programs with functions, until `stop`.",
    "status": "Show the deployment and the running instances.",
    "stop": "End the deployment of `start`.",
}
"""Every verb with its line in `toprope --help`. The verb `x` is the typer application `app` in toprope/cli/x.py."""


class VerbGroup(TyperGroup):
    """The verbs of the table. A verb's file is imported when the verb is used, never for `toprope --help`."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        localize(self)

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of all verbs."""
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a verb; None when there is no such verb."""
        if cmd_name not in VERBS:
            return None
        command = typer.main.get_command(import_module(f"toprope.cli.{cmd_name}").app)
        command.name = cmd_name
        return localize(command)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The verb that the words begin with; for a word that is none, the error names the ones that may be meant."""
        if args and args[0] not in VERBS and not ctx.resilient_parsing:
            near = difflib.get_close_matches(args[0], VERBS, n=3, cutoff=0.5)
            meant = (
                f"Did you mean {', '.join(map(repr, near))}?" if near else "A program is run by toprope run PROGRAM."
            )
            ctx.fail(f"No such command {args[0]!r}. {meant}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the table of verbs into the help."""
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


app = group(VerbGroup, "COMMAND ...")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"toprope {toprope.__version__}")
        raise typer.Exit


@app.callback()
def _toprope(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Rehearse PyTorch programs on a simulated Ascend NPU, then run them on the real one, on CUDA or on the CPU."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status: 0 ok, 1 findings, 2 usage, 3 environment.

    Args:
        arguments: the words after `toprope`; those of this process when left out.
    """
    with shown_in(_language()):
        return guarded(lambda: _run(arguments))


_LOCALE = ("LC_ALL", "LC_MESSAGES", "LANG")  # POSIX: the first that is set and not empty decides


def _language() -> str:
    """The user's language: TOPROPE_LANG or `lang` in pyproject.toml, else the locale's, else English."""
    from toprope.settings import Settings

    try:
        setting = Settings.load().lang
    except SettingError:
        setting = "auto"  # the verb that needs the settings reports it
    if not _can_show("中"):
        return "en"
    if setting != "auto":
        return setting
    locale = next((text for name in _LOCALE if (text := os.environ.get(name, ""))), "")
    return "zh" if re.match(r"zh(?![a-z])", locale, re.IGNORECASE) else "en"


def _can_show(text: str) -> bool:
    """Return True if both streams take these characters, which another encoding shows as question marks."""
    try:
        for stream in (sys.stdout, sys.stderr):
            text.encode(getattr(stream, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


_STEPS = (
    (
        "toprope run --chip 910B3 train.py",
        Message("run a program on a simulated card, and see what a real one would do"),
    ),
    ("toprope port train.py --diff", Message("see what a program for CUDA needs to run on NPU, CUDA and CPU")),
    ("toprope doctor", Message("see why there is no NPU here, and what to do")),
)
"""Ways to begin, for `toprope` alone."""


def _begin() -> int:
    from toprope.terminal import cells, say

    width = max(cells(command) for command, _ in _STEPS)
    steps = "".join(f"  {command:<{width}}  {local(text)}\n" for command, text in _STEPS)
    first = local(Message("toprope takes PyTorch programs to Ascend NPUs. Three ways to begin:"))
    last = local(Message("toprope --help lists all commands, toprope explain start shows the first page to read."))
    say(f"{first}\n{steps}{last}\n")
    return 0


_EXTRAS = {"torch": "torch", "PIL": "images", "diffusers": "images", "transformers": "images"}
"""Packages that commands import where they are needed, with the extra that brings them."""

_SPACE, _RIGHTS, _PATH = "free some space, or name another folder", "name one that is yours", "check the path"
_OF_FILES = {
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EROFS: _RIGHTS,
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EFBIG: _SPACE,
    errno.ENOENT: _PATH,
    errno.ENOTDIR: _PATH,
    errno.EISDIR: _PATH,
    errno.ENAMETOOLONG: _PATH,
    errno.ELOOP: _PATH,
}
"""Advice for an error of a file that a command did not expect, by its number."""


def _of_the_user(error: BaseException) -> bool:
    """Return True for an error in code of the user, such as the file of `toprope serve`: its traceback says where."""
    ours = (str(Path(__file__).parents[1]), sys.prefix, *sysconfig.get_paths().values(), "<")
    return not all(frame.filename.startswith(ours) for frame in traceback.extract_tb(error.__traceback__))


def _run(arguments: Sequence[str] | None) -> int:
    """Run the command line: completion, the greeting without arguments, or a verb; errors become an exit status."""
    if VARIABLE in os.environ:  # the shell asks for completions
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words and VARIABLE not in os.environ:
        return _begin()
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    try:
        app(args=words, prog_name="toprope")
    except TopropeError as error:
        return _reported(error)
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None or _of_the_user(error):
            raise
        from toprope.extras import advice

        package = "Pillow" if error.name == "PIL" else error.name
        return _reported(PackageError(f"this needs {package}, which is not installed.", sys.executable, advice(extra)))
    except OSError as error:
        if error.filename is None or error.errno not in _OF_FILES or _of_the_user(error):
            raise
        return _reported(
            EnvironmentProblem(
                f"a file or folder cannot be used: {error.strerror}.",
                os.fspath(error.filename2 or error.filename),
                _OF_FILES[error.errno],
            )
        )
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):
            raise end.__context__ from None  # click ends silently where a pipe was closed
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _reported(error: TopropeError) -> int:
    sys.stderr.write(f"toprope: {error}\n")
    return error.exit_status

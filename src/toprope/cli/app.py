"""The frame of the command line: the table of verbs, `--version`, and how errors end a command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import toprope
from toprope.cli.group import group
from toprope.cli.standard_streams import guarded
from toprope.errors import PackageError, TopropeError

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
    "explain": "Print a page of the documentation, such as the one that an error names; list the pages.",
    "start": "Start a deployment: settings and cards for this user's programs with functions, until `stop`.",
    "status": "Show the deployment and the running instances.",
    "stop": "End the deployment of `start`.",
}
"""Every verb with its line in `toprope --help`. The verb `x` is the typer application `app` in toprope/cli/x.py."""


class VerbGroup(TyperGroup):
    """The verbs of the table. A verb's file is imported when the verb is used, never for `toprope --help`."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of all verbs."""
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a verb; None when there is no such verb."""
        if cmd_name not in VERBS:
            return None
        command = typer.main.get_command(import_module(f"toprope.cli.{cmd_name}").app)
        command.name = cmd_name
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the table of verbs into the help."""
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))


app = group(VerbGroup, "VERB ...")


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
    return guarded(lambda: _run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    try:
        app(args=None if arguments is None else list(arguments), prog_name="toprope")
    except TopropeError as error:
        return _reported(error)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from toprope.extras import advice

        return _reported(PackageError("this needs torch, which is not installed.", sys.executable, advice("torch")))
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):
            raise end.__context__ from None  # click ends silently where a pipe was closed
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _reported(error: TopropeError) -> int:
    sys.stderr.write(f"toprope: {error}\n")
    return error.exit_status

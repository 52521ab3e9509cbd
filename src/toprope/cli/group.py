"""Makers of the typer applications: one for a single verb, one for a verb with commands below it.

Used by each verb's file, so that all have the same options for help, no rich tracebacks and no completion of their own.
rich is off since it would triple the time of `--help`. Tests: tests/cli/test_cli.py, and tests/cli/test_completion.py
for `chip_names`.
"""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

__all__ = ["HELP", "chip_names", "group", "verb"]

HELP = {"help_option_names": ["-h", "--help"]}
"""Settings of each command: typer hands those of the group on to none."""


# rich would triple the time of `toprope --help`, and a traceback of ours should look like any other
_PLAIN: dict[str, Any] = {"rich_markup_mode": None, "pretty_exceptions_enable": False, "add_completion": False}


def verb() -> typer.Typer:
    """A typer application of one command."""
    return typer.Typer(**_PLAIN)


def group(cls: type[TyperGroup] = TyperGroup, metavar: str = "COMMAND ...", *, alone: bool = False) -> typer.Typer:
    """A typer application that others are commands of.

    Args:
        cls: finds and lists the commands.
        metavar: stands for them in the usage line.
        alone: whether it does something without a command; otherwise it shows its help.
    """
    return typer.Typer(
        cls=cls,
        **_PLAIN,
        no_args_is_help=not alone,
        subcommand_metavar=metavar,
        context_settings=HELP,
    )


def chip_names(incomplete: str) -> list[str]:
    """The chips whose names begin so, for the shell."""
    from toprope import chips

    return [name for name in chips.names() if name.startswith(incomplete)]

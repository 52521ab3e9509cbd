"""A verb with commands of its own: how it looks, and how its help is asked for."""

from __future__ import annotations

import typer
from typer.core import TyperGroup

__all__ = ["HELP", "group"]

HELP = {"help_option_names": ["-h", "--help"]}
"""Settings of each command: typer hands those of the group on to none."""


def group(cls: type[TyperGroup] = TyperGroup, metavar: str = "COMMAND ...") -> typer.Typer:
    """A typer application that others are commands of.

    Args:
        cls: finds and lists the commands.
        metavar: stands for them in the usage line.
    """
    return typer.Typer(
        cls=cls,
        # rich would triple the time of `toprope --help`, and a traceback of ours should look like any other
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=False,
        no_args_is_help=True,
        subcommand_metavar=metavar,
        context_settings=HELP,
    )

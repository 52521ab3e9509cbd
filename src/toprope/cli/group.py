"""A verb with commands of its own: how it looks, and how its help is asked for."""

from __future__ import annotations

import typer

__all__ = ["HELP", "group"]

HELP = {"help_option_names": ["-h", "--help"]}
"""Settings of each command: typer hands those of the group on to none."""


def group() -> typer.Typer:
    """A typer application that others are commands of."""
    return typer.Typer(
        # rich would triple the time of `toprope --help`, and a traceback of ours should look like any other
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=False,
        no_args_is_help=True,
        subcommand_metavar="COMMAND ...",
        context_settings=HELP,
    )

"""`toprope stop`, and `yr stop` under `toprope run`: ends the deployment of `start`.

The deployment's file is `functions.deployment.state_file`; running programs must not be touched. `--force` is
openYuanrong's option. Tests: tests/cli/test_cli_start.py.
"""

from __future__ import annotations

from typing import Annotated

import typer

from toprope.cli.group import verb

__all__ = ["app"]

app = verb()


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
def stop(
    force: Annotated[bool, typer.Option("--force", help="Kill Ray at once, if it was started.")] = False,
) -> None:
    """End the deployment of `toprope start`: its settings and cards. Running programs are not affected.

    More: toprope explain functions.
    """
    from toprope.functions.deployment import state_file

    found = state_file.end()
    if found is None:
        typer.echo("nothing runs")
        return
    if found.address:
        state_file.cluster().stop(found, force)
    typer.echo("stopped")

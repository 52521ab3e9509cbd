"""`toprope completion`: the script that completes toprope's commands in a shell. typer makes it, and answers it.

A verb of `cli.app`, which also reads `VARIABLE`; its name is the one that click's scripts expect for a program called
`toprope`. tests/cli/test_completion.py completes in real shells.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from toprope.cli.group import HELP, verb

__all__ = ["VARIABLE", "app"]

VARIABLE = "_TOPROPE_COMPLETE"
"""Set where a shell asks for the words that may follow."""

app = verb()


class Shell(StrEnum):
    """Shells that toprope's commands are completed in."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@app.command(context_settings=HELP)
def completion(shell: Annotated[Shell, typer.Argument(help="The shell that runs the script.")]) -> None:
    """Print the script that completes toprope's commands and options.

    bash: eval "$(toprope completion bash)" in ~/.bashrc. zsh: eval "$(toprope completion zsh)" in ~/.zshrc, after
    compinit. fish: toprope completion fish > ~/.config/fish/completions/toprope.fish
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    from toprope.terminal import say

    say(get_completion_script(prog_name="toprope", complete_var=VARIABLE, shell=shell.value) + "\n")

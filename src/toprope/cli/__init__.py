"""The command line, `toprope VERB ...`: one file per verb, loaded when it is named.

The entry point of pyproject.toml is `main`, which `app` has. A verb is a row of `app.VERBS` and a file here. Tests:
tests/cli/test_cli.py.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toprope.cli.app import main

__all__ = ["main"]


def __getattr__(name: str) -> object:
    # npu_smi is in this package and must not wait for the command line
    if name != "main":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from toprope.cli import app

    return globals().setdefault(name, app.main)

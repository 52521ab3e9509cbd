"""The command line, `toprope VERB ...`: one file per verb, loaded when it is named."""

from toprope.cli.app import main

__all__ = ["main"]

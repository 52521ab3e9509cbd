"""Functions and instances in processes of this machine."""

from toprope.functions.local.startup import start

__all__ = ["start"]

"""Functions and instances in processes of this machine."""

from toprope.functions.local.start import start

__all__ = ["start"]

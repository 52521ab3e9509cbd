"""toprope's stand-in for `yr`, openYuanrong's Python API: toprope.functions under its other name."""

from toprope import functions
from toprope.functions import *  # noqa: F403 - the names are those of the room's door

from . import apis, config, exception  # noqa: F401 - reached as attributes too

__all__ = functions.__all__

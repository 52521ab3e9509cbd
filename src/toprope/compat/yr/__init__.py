"""toprope's stand-in for `yr`, openYuanrong's Python API: toprope.functions under its other name."""

from toprope import functions
from toprope.compat.missing import missing_from
from toprope.functions import *  # noqa: F403 - the names are those of the package

from . import affinity, apis, config, decorator, exception, generator, object_ref, stream  # noqa: F401 - reached as attributes too

__all__ = functions.__all__

__getattr__ = missing_from(__name__)

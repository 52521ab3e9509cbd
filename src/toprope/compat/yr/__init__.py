"""toprope's stand-in for `yr`, openYuanrong's Python API: toprope.functions under its other name."""

from toprope import functions
from toprope.compat.missing import missing_from
from toprope.functions import *  # noqa: F403 - the names are those of the room's door

from . import affinity, apis, config, exception, object_ref, stream  # noqa: F401 - reached as attributes too
from .fcc import create_function_group, get_function_group_context

__all__ = [*functions.__all__, "create_function_group", "get_function_group_context"]

__getattr__ = missing_from(__name__)

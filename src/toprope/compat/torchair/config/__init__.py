"""`torchair.config`: how some documents spell `torchair.configs`; torchair itself has only that one."""

from toprope.compat.missing import missing_from

from . import compiler_config

__all__ = ["compiler_config"]

__getattr__ = missing_from(__name__)

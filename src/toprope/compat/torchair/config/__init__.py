"""`torchair.config`: how some documents spell `torchair.configs`; torchair itself has only that one."""

from . import compiler_config

__all__ = ["compiler_config"]

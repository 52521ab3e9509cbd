"""`torchair.configs`: how a model is compiled."""

from toprope.compat.missing import missing_from

from . import compiler_config

__all__ = ["compiler_config"]

__getattr__ = missing_from(__name__)

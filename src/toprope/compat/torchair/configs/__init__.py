"""`torchair.configs`: how a model is compiled."""

from . import compiler_config

__all__ = ["compiler_config"]

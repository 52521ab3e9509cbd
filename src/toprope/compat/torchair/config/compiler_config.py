"""`torchair.config.compiler_config`: the class that programs import from here."""

from toprope.compat.missing import missing_from
from toprope.sim.graph import CompilerConfig

__all__ = ["CompilerConfig"]

__getattr__ = missing_from(__name__)

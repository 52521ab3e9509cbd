"""`torchair.configs.compiler_config`: the class that programs import from here."""

from toprope.sim.graph import CompilerConfig

__all__ = ["CompilerConfig"]

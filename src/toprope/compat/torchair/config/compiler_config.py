"""Facade module `torchair.config.compiler_config`: `CompilerConfig` of toprope.sim.graph.

Programs import it by this name, which is the vendor's, and so are the names in it. Tests:
tests/compat/test_torchair_facade.py.
"""

from toprope.compat.missing import missing_from
from toprope.sim.graph import CompilerConfig

__all__ = ["CompilerConfig"]

__getattr__ = missing_from(__name__)

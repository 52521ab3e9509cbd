"""Facade module `torchair.configs.compiler_config`: `CompilerConfig` of toprope.sim.graph.

Programs import it by this name. Its names are the vendor's; tests/compat/test_vendor_names.py compares them.
"""

from toprope.compat.missing import missing_from
from toprope.sim.graph import CompilerConfig

__all__ = ["CompilerConfig"]

__getattr__ = missing_from(__name__)

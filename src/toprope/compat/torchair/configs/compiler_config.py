"""Facade module `torchair.configs.compiler_config`: `CompilerConfig` of toprope.sim.graph.

Programs import it by this name, which is the vendor's. Tests: tests/compat/test_torchair_facade.py, and
tests/compat/test_vendor_names.py for the names.
"""

from toprope.compat.missing import missing_from
from toprope.sim.graph import CompilerConfig

__all__ = ["CompilerConfig"]

__getattr__ = missing_from(__name__)

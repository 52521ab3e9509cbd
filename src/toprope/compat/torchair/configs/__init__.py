"""Facade package `torchair.configs`: options of how a model is compiled.

Programs import it by this name, which is the vendor's, and so are the names in it. Tests:
tests/compat/test_torchair_facade.py.
"""

from toprope.compat.missing import missing_from

from . import compiler_config

__all__ = ["compiler_config"]

__getattr__ = missing_from(__name__)

"""Facade module `yr.generator`: references to the results of generators, from toprope.functions.

Programs import it by this name, which is the vendor's, and so are the names in it; what they do is changed in
toprope.functions.generators. Tests: tests/functions/test_functions_unavailable.py.
"""

from toprope.compat.missing import missing_from
from toprope.functions import ObjectRefGenerator

__all__ = ["ObjectRefGenerator"]

__getattr__ = missing_from(__name__)

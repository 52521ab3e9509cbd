"""Facade module `yr.apis`: all calls of toprope.functions, under the module that defines them in openYuanrong.

Programs import it by this name, which is the vendor's, and so are the names in it; what they do is changed in
toprope.functions. Tests: tests/functions/test_functions_unavailable.py.
"""

from toprope import functions
from toprope.compat.missing import missing_from
from toprope.functions import *  # noqa: F403 - the names are those of the package

__all__ = functions.__all__

__getattr__ = missing_from(__name__)

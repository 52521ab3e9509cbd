"""Facade of `yr`, openYuanrong's Python API: the names of toprope.functions under the vendor's name.

Programs import it as `yr` (toprope.compat.finder serves it). The submodules are those of the vendor's package and hold
no code of their own; the names that a module must have are in support/vendor_names.toml. What a name does is changed in
toprope.functions. Tests: tests/compat/test_vendor_names.py, tests/functions/test_functions_unavailable.py.
"""

from toprope import functions
from toprope.compat.missing import missing_from
from toprope.functions import *  # noqa: F403 - the names are those of the package

from . import affinity, apis, config, decorator, exception, generator, object_ref, stream  # noqa: F401 - reached as attributes too

__all__ = functions.__all__

__getattr__ = missing_from(__name__)

"""toprope takes PyTorch programs to Huawei Ascend NPUs and keeps them working on CUDA and on the CPU.

Importing it imports no torch, patches nothing and prints nothing: the parts are loaded when they are named. A part that
is added needs its name in `__all__` below; tests/base/test_import.py.

PYTEST_DONT_REWRITE: pytest rewrites the asserts of packages with a plugin, and complains (an error with -W error) where
such a package was imported before it began, as `toprope run pytest` does.
"""

from importlib import import_module
from types import ModuleType

__all__ = ["__version__", "chips", "device", "errors", "settings", "sim", "tiers"]

__version__ = "0.1.0"


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return import_module(f"toprope.{name}")
    raise AttributeError(f"module 'toprope' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

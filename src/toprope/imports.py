"""Import hooks: a function runs when a module is imported by someone else; for parts of torch that few programs use.

This file is read at the start of every Python process of a run: it imports nothing but the import system.

Used by `sim` and `compat`. A hook finds no module itself: the other finders of sys.meta_path do, as without it. Names
of methods are importlib's, and afterwards a module must have its own loader. Tests: tests/base/test_imports.py,
tests/compat/test_finder.py with torch's stand-in.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from collections.abc import Callable, Container
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["ImportHook", "after_import"]


class ImportHook:
    """Finds modules where the other finders of sys.meta_path find them, with a loader that acts at their import.

    Afterwards a module looks as if nobody had been there: its loader is its own.

    Args:
        names: full names of the modules.
    """

    def __init__(self, names: Container[str]) -> None:
        self._names = names
        self._asking: set[tuple[str, int]] = set()  # modules that a thread asks the other finders for

    def load(self, module: ModuleType, execute: Callable[[], None]) -> None:
        """Run the module's code by calling `execute`, and what is to happen before and after."""
        raise NotImplementedError

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The spec of such a module with our loader around its own; None for every other module."""
        asked = fullname, get_ident()
        if fullname not in self._names or asked in self._asking:
            return None
        self._asking.add(asked)  # another hook for the same module asks this one
        try:
            for finder in sys.meta_path:
                find_spec = getattr(finder, "find_spec", None)
                spec: ModuleSpec | None = find_spec(fullname, path, target) if find_spec else None
                if spec is not None:
                    if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                        loader: Any = _Loader(spec.loader, self)
                        spec.loader = loader
                    return spec
        finally:
            self._asking.discard(asked)
        return None


class _Loader:
    """Has the hook run the module. All else is answered by the module's own loader."""

    def __init__(self, loader: Any, hook: ImportHook) -> None:
        self._loader = loader
        self._hook = hook

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader  # inspect and others ask for it
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._hook.load(module, lambda: self._loader.exec_module(module))


def after_import(name: str, function: Callable[[], None]) -> None:
    """Call a function after the module's import; at once where it has been imported."""
    if name in sys.modules:
        function()
    else:
        sys.meta_path.insert(0, _Once(name, function))


class _Once(ImportHook):
    """Waits for one module, and leaves sys.meta_path when it is asked for."""

    def __init__(self, name: str, function: Callable[[], None]) -> None:
        super().__init__((name,))
        self._function = function

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname in self._names and self in sys.meta_path:
            sys.meta_path.remove(self)
        return super().find_spec(fullname, path, target)

    def load(self, module: ModuleType, execute: Callable[[], None]) -> None:
        execute()
        self._function()

"""Import hook that gives torch.nn.DataParallel its way to simulated cards, when torch.nn.parallel is imported.

torch's own scatter, gather and broadcast are CUDA's; torch_npu brings its own. The functions are in data_parallel.py;
toprope.compat.finder installs the hook at the start of every Python process of a run, so it imports no more than it
must. The modules and names in them are torch's, and `uninstall` gives torch its functions back. Tests:
tests/sim/simulated/test_data_parallel.py, tests/compat/test_data_parallel.py in a run.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from toprope.imports import ImportHook

__all__ = ["ParallelFinder", "install", "uninstall"]

_WRAPPED = {
    "torch.nn.parallel.comm": ("broadcast", "broadcast_coalesced", "gather", "reduce_add", "scatter"),
    "torch.nn.parallel.parallel_apply": ("parallel_apply",),
}
"""Modules of torch, and the functions in them that know CUDA alone."""

_COPIES = ("torch.nn.parallel", "torch.nn.parallel.data_parallel", "torch.cuda.comm")
"""Modules that hold these functions under their own names once they are imported."""


def install() -> None:
    """Wrap torch's functions now where they are loaded, else when they are."""
    missing = [name for name in _WRAPPED if name not in sys.modules]
    for name in _WRAPPED.keys() - set(missing):
        _wrap(sys.modules[name])
    if missing and not any(isinstance(finder, ParallelFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, ParallelFinder())


def uninstall() -> None:
    """Give torch its own functions back."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, ParallelFinder)]
    for module in filter(None, map(sys.modules.get, _WRAPPED)):
        for name, function in list(vars(module).items()):
            if hasattr(function, "__toprope_wraps__"):
                _replace(module, name, function.__toprope_wraps__)


class ParallelFinder(ImportHook):
    """Wraps the functions of these modules once they are imported."""

    def __init__(self) -> None:
        super().__init__(_WRAPPED)

    def load(self, module: ModuleType, execute: Callable[[], None]) -> None:
        """Import the module, then wrap its functions."""
        execute()
        _wrap(module)


def _wrap(module: ModuleType) -> None:
    for name in _WRAPPED[module.__name__]:
        own = getattr(module, name, None)
        if own is not None and not hasattr(own, "__toprope_wraps__"):
            _replace(module, name, _with_cards(name, own))


def _replace(module: ModuleType, name: str, function: Callable[..., Any]) -> None:
    before = getattr(module, name)
    for each in (module, *filter(None, map(sys.modules.get, _COPIES))):
        if vars(each).get(name) is before:
            setattr(each, name, function)


def _with_cards(name: str, own: Callable[..., Any]) -> Callable[..., Any]:
    """torch's function, which leaves work on cards to ours."""

    @functools.wraps(own)
    def function(*arguments: Any, **keywords: Any) -> Any:
        from toprope.compat import data_parallel

        if not data_parallel.on_cards():
            return own(*arguments, **keywords)
        return getattr(data_parallel, name)(own, *arguments, **keywords)

    vars(function)["__toprope_wraps__"] = own
    return function

"""What `import torch` brings in a process of a run: the simulated card, or a torch.npu that says there is none."""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["AUTOLOAD", "TorchFinder"]

AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
"""torch's own switch: 1, or unset, loads the entry points `torch.backends` at the end of `import torch`."""


class TorchFinder:
    """Finds torch where the other finders find it, with a loader that acts at the end of its import.

    Args:
        simulated_card: True installs the card that TOPROPE_SIM describes, in place of torch_npu's entry point;
            False gives torch an `npu` that says there is no card.
    """

    def __init__(self, *, simulated_card: bool) -> None:
        self.simulated_card = simulated_card

    def find_spec(self, fullname: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The spec of torch with our loader around its own; None for every other module."""
        if fullname != "torch":
            return None
        for finder in sys.meta_path:
            find_spec = None if isinstance(finder, TorchFinder) else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find_spec(fullname, None, target) if find_spec else None
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    loader: Any = _TorchLoader(spec.loader, self.simulated_card)
                    spec.loader = loader
                return spec
        return None


class _TorchLoader:
    """Runs torch's own loader, then what the run asks for. All else is answered by torch's own loader."""

    def __init__(self, loader: Any, simulated_card: bool) -> None:
        self._loader = loader
        self._simulated_card = simulated_card

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        # torch is to look as if we had not been there: inspect and others ask for the loader
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        if self._simulated_card:
            self._exec_with_card(module)
        else:
            self._loader.exec_module(module)
            from toprope.compat import no_npu

            no_npu.install()

    def _exec_with_card(self, module: ModuleType) -> None:
        # Off for this import only: it would load a real torch_npu, which cannot live beside the simulated card.
        # Children find the variable as the user left it.
        before = os.environ.get(AUTOLOAD)
        os.environ[AUTOLOAD] = "0"
        try:
            self._loader.exec_module(module)
        finally:
            if before is None:
                os.environ.pop(AUTOLOAD, None)
            else:
                os.environ[AUTOLOAD] = before
        if before in (None, "1"):
            _load_backends()


def _load_backends() -> None:
    """Do what torch does at the end of its import, with the simulated card in place of torch_npu.

    Raises:
        TopropeError: the simulated card cannot be installed.
        RuntimeError: the entry point of another backend failed; torch's own words.
    """
    from toprope.compat.finder import CARD_NAMES
    from toprope.errors import TopropeError

    # by name and not through its entry point: toprope need not be installed in this Python
    from toprope.sim import _autoload

    try:
        _autoload()
    except TopropeError as error:
        # it says what to do; where in the simulator it arose helps nobody and hides that
        raise error.with_traceback(None) from None
    from importlib.metadata import entry_points

    for backend in entry_points(group="torch.backends"):
        if backend.module.partition(".")[0] in (*CARD_NAMES, "toprope"):
            continue
        try:
            backend.load()()
        except Exception as error:
            raise RuntimeError(
                f"Failed to load the backend extension: {backend.name}. "
                f"You can disable extension auto-loading with {AUTOLOAD}=0."
            ) from error

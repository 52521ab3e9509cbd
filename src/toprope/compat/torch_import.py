"""Import hook for torch in a process of a run: it adds the simulated card, or a torch.npu that says there is none.

toprope.compat.finder installs it. The card is made by `toprope.sim`, the module without a card is no_npu.py. The
switches, and loading the entry points `torch.backends` with torch's own error, repeat the end of torch's `__init__`,
which has to be followed; the variable that is set meanwhile must be as before for children. Tests:
tests/compat/test_finder.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from types import ModuleType

from toprope.imports import ImportHook

__all__ = ["AUTOLOAD", "CARD_NAMES", "TRANSFER", "TorchFinder"]

AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
"""torch's own switch: 1, or unset, loads the entry points `torch.backends` at the end of `import torch`."""

TRANSFER = "TORCH_TRANSFER_TO_NPU"
"""torch_npu's own switch: 1 imports `torch_npu.contrib.transfer_to_npu` with torch_npu."""

CARD_NAMES = ("torch_npu", "torchair")
"""The names that `CardFinder` serves even where a real package is installed."""


class TorchFinder(ImportHook):
    """Acts at the end of torch's import.

    Args:
        simulated_card: True installs the card that TOPROPE_SIM describes, in place of torch_npu's entry point;
            False gives torch an `npu` that says there is no card.
    """

    def __init__(self, *, simulated_card: bool) -> None:
        super().__init__(("torch",))
        self.simulated_card = simulated_card

    def load(self, module: ModuleType, execute: Callable[[], None]) -> None:
        """Import torch, then do what the run asks for."""
        if self.simulated_card:
            _load_with_card(execute)
        else:
            execute()
            from toprope.compat import no_npu

            no_npu.install()


def _load_with_card(execute: Callable[[], None]) -> None:
    # Off for this import only: it would load a real torch_npu, which cannot share a process with the simulated card.
    # Children find the variable as the user left it.
    before = os.environ.get(AUTOLOAD)
    os.environ[AUTOLOAD] = "0"
    try:
        execute()
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
    from toprope.errors import TopropeError

    # by name and not through its entry point: toprope need not be installed in this Python
    from toprope.sim import _autoload

    try:
        _autoload()
    except TopropeError as error:
        # it says what to do; its place in the simulator would only hide that
        raise error.with_traceback(None) from None
    if os.environ.get(TRANSFER, "0") != "0":
        import_module("torch_npu")  # a real one is loaded here in any case
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

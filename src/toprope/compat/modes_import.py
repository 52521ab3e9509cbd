"""Enable the memory mode that ENABLE_VIRTUAL_BLACKWELL and VB_MODE ask for, once a process of a run has imported torch.

toprope.compat.finder calls it at the start of every Python process of a run, so it imports no more than it must. The
two variables are apt_model's; the mode itself is apt_model/optimization/vb_global.py. Tests:
tests/compat/test_apt_vb_global.py.
"""

from __future__ import annotations

import os

__all__ = ["SWITCH", "install_for_run"]

SWITCH = "ENABLE_VIRTUAL_BLACKWELL"


def install_for_run() -> None:
    """Wait for torch, where a mode may be wanted."""
    if os.environ.get(SWITCH, "").strip():
        from toprope.imports import after_import

        after_import("torch", _enable)


def _enable() -> None:
    # by the name that a program knows: it then finds what is enabled, and a real apt_model goes before ours
    from importlib import import_module

    import_module("apt_model.optimization.vb_global")

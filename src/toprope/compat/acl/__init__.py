"""Facade of `acl`, the Python interface of CANN's runtime (pyACL): what programs ask to find and choose cards.

Ray counts the NPUs of a machine by it, and so do verl and vLLM-Ascend through Ray. Importable as `acl` where
toprope.compat.finder serves it; a program's own `acl` wins. Models, streams, memory and media are missing. Names, order
of results and numbers of errors are pyACL's. Sources: the pages of acl.init, acl.finalize and acl.get_soc_name in
CANN's documentation of pyACL; errors have the numbers of acl_base.h. Tests: tests/compat/test_acl.py, with a real Ray;
docs/facades.md lists the names.
"""

from __future__ import annotations

from toprope.compat.missing import missing_from

from . import rt

__all__ = ["finalize", "get_soc_name", "init", "rt"]

_REPEAT_INITIALIZE, _REPEAT_FINALIZE = 100002, 100037

_state = {"is_initialised": False, "is_finalised": False}


def init(config_path: str | None = None) -> int:
    """Begin: 0, or 100002 where it was called before. The settings of the file (dumps, profiling) have no effect."""
    if _state["is_initialised"]:
        return _REPEAT_INITIALIZE
    _state["is_initialised"] = True
    return 0


def finalize() -> int:
    """End: 0, or 100037 where it was called before."""
    if _state["is_finalised"]:
        return _REPEAT_FINALIZE
    _state["is_finalised"] = True
    return 0


def get_soc_name() -> str | None:
    """Name of the chip, "Ascend910B3"; None without a card."""
    count, _ = rt.get_device_count()
    return str(rt.npu().get_device_name(0)) if count else None


__getattr__ = missing_from(__name__)

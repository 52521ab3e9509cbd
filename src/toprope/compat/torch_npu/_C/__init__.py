"""Facade module `torch_npu._C`: those names of the compiled part of torch_npu that programs and tests ask for.

Functions on devices and streams come from `torch.npu`, and are missing where there is no card. Tests:
tests/compat/test_torch_npu_utils.py.
"""

import importlib
from typing import Any

import torch

from toprope.compat.missing import missing_from

from .._cpu_affinity import bind as _npu_set_thread_affinity
from .._cpu_affinity import reset as _npu_reset_thread_affinity
from ..operators.storage import empty_strided as _empty_strided_npu
from ..operators.storage import weak_ref as _weak_ref_tensor
from . import _distributed_c10d, _logging
from ._functions import SAME as _SAME
from ._functions import current_stream as _npu_getCurrentStream  # noqa: N812
from ._functions import default_stream as _npu_getDefaultStream  # noqa: N812
from ._functions import find as _find
from ._functions import has_primary_context as _npu_hasPrimaryContext  # noqa: N812
from ._functions import history_is_enabled as _npu_isHistoryEnabled  # noqa: N812
from ._functions import local_device as _npu_getLocalDevice  # noqa: N812
from ._functions import option as _npu_getOption  # noqa: N812
from ._functions import raw_stream as _npu_getCurrentRawStream  # noqa: N812
from ._functions import raw_stream as _npu_getCurrentRawStreamNoWait  # noqa: N812

__all__ = [
    "_distributed_c10d",
    "_empty_strided_npu",
    "_logging",
    "_npu_getCurrentRawStream",
    "_npu_getCurrentRawStreamNoWait",
    "_npu_getCurrentStream",
    "_npu_getDefaultStream",
    "_npu_getLocalDevice",
    "_npu_getOption",
    "_npu_hasPrimaryContext",
    "_npu_isHistoryEnabled",
    "_npu_reset_thread_affinity",
    "_npu_set_thread_affinity",
    "_weak_ref_tensor",
]

_MODULES = {"_mstx": "_mstx_calls", "_npurt": "npurt"}

_missing = missing_from(__name__)


def __getattr__(name: str) -> Any:
    if name in _MODULES and hasattr(torch, "npu"):
        return importlib.import_module(f"toprope.sim.npu.{_MODULES[name]}")
    found = _find(name)
    return _missing(name) if found is None else found


def __dir__() -> list[str]:
    return sorted({*globals(), *_SAME})

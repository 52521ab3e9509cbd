"""CPU affinity of a thread, set as torch_npu sets it: only where CPU_AFFINITY_CONF switches that on.

Called by `torch_npu._C`, behind `torch_npu.utils.set_thread_affinity`. The forms of CPU_AFFINITY_CONF and of the
arguments are torch_npu's; cores that the machine does not have are left out. Tests:
tests/compat/test_torch_npu_utils.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from ._error_codes import ErrCode, pta_error

__all__ = ["bind", "reset"]

_SWITCH = "CPU_AFFINITY_CONF"
_at_start = os.sched_getaffinity(0)


def bind(*cores: object) -> None:
    """Let the calling thread run on some CPU cores only.

    Args:
        cores: first and last core, both -1 for all cores that the process started with; or one list of cores. Cores
            that the machine does not have are left out.

    Raises:
        RuntimeError: they have neither form.
    """
    if len(cores) == 2 and all(isinstance(core, int) for core in cores):
        first, last = cores
        assert isinstance(first, int)
        assert isinstance(last, int)
        _set(_at_start if first == -1 else range(first, last + 1))
    elif len(cores) == 1 and isinstance(cores[0], list) and all(isinstance(core, int) for core in cores[0]):
        _set(cores[0])
    else:
        text = "_npu_set_thread_affinity takes two integers, the first core and the last, or a list of integers"
        raise RuntimeError(text + pta_error(ErrCode.PARAM))


def reset() -> None:
    """Let the calling thread run on all cores that the process started with."""
    _set(_at_start)


def _set(cores: Iterable[int]) -> None:
    there = {*cores} & {*range(os.cpu_count() or 1)}
    if _is_on() and there:
        os.sched_setaffinity(0, there)


def _is_on() -> bool:
    """Return True if the variable has a mode other than 0: "1", "mode:1", "mode:2,npu0:0-3"."""
    mode = re.match(r"\s*(?:mode:)?(\d+)", os.environ.get(_SWITCH, ""))
    return mode is not None and int(mode[1]) != 0

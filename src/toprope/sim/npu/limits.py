"""Part of `torch.npu`: limits of the cores of a card that the process, or a stream, may use.

A limit is a stored number that later work reads (csrc/core/core_limits.h, which has the kinds of cores in the same
order). For each kind of core a stream's own limit counts, else the process's for the card, else the number of cores of
the chip. A stream's may exceed the process's. -1 leaves a kind as it is. Tests:
tests/sim/simulated/test_core_limits.py; users' page: docs/limits.md.
"""

from __future__ import annotations

import ctypes
import functools
import os
import time
from collections.abc import Callable
from typing import Any, ParamSpec

from toprope.sim.native import native
from toprope.sim.npu._state import INVALID, PARAMETER, TYPE, VALUE, chip, lazy_init, message, vendor_error
from toprope.sim.npu.streams import Stream

__all__ = [
    "get_device_limit",
    "get_stream_limit",
    "in_force",
    "reset_device_limit",
    "reset_stream_limit",
    "set_device_limit",
    "set_stream_limit",
]

_P = ParamSpec("_P")

_KINDS = ("cube_core_num", "vector_core_num")
"""The vendor numbers the kinds of cores: 0 is cube, 1 is vector."""

_UNTOUCHED = -1
_NONE = -1
"""The value with which the core takes a limit away."""

_LARGEST = 2**32 - 1

_OF_PROCESS = -1
"""In the place of a stream's number, where the core is asked for the process's limits."""


def in_force(device: int, stream_id: int | None = None) -> dict[str, int]:
    """The limits that count for work on a stream, or on a card for a stream without limits of its own.

    Args:
        device: number of the card.
        stream_id: the stream's number on the card; None for the process's limits alone.
    """
    found = (ctypes.c_int * len(_KINDS))()
    native().limits(device, _OF_PROCESS if stream_id is None else stream_id, found)
    return dict(zip(_KINDS, found, strict=True))


def _set(device: int, stream_id: int, kind: str, limit: int) -> None:
    native().set_limit(device, stream_id, _KINDS.index(kind), limit)


def _cores() -> dict[str, int]:
    """The cores of the chip; all cards of a process are alike."""
    return {_KINDS[0]: chip().cube_cores or 0, _KINDS[1]: chip().vector_cores or 0}


def _count(value: Any) -> int:
    """A number of cores, read as torch_npu reads it: an int from 0 to 2^32 - 1; bool is an int."""
    if not isinstance(value, int):
        raise TypeError("an integer is required")
    if value < 0:
        raise OverflowError("can't convert negative value to unsigned int")
    if value > _LARGEST:
        raise RuntimeError("Overflow when unpacking unsigned long long")
    return int(value)


def _within(kind: str, value: Any, function: str, of_what: str) -> int:
    """The limit, if the chip has that number of cores of that kind."""
    limit, most = _count(value), _cores()[kind]
    if limit > most:
        when = time.strftime("%Y-%m-%d-%H:%M:%S")
        detail = (
            f"EE1003: [PID: {os.getpid()}] {when} Setting the device resource limit{of_what} failed because value"
            f" {limit} for parameter value is invalid. Expected value: must be less than or equal to {most}."
        )
        raise vendor_error(function, "err", INVALID, detail)
    return limit


def _check_device(device: Any) -> int:
    if isinstance(device, bool) or not isinstance(device, int):
        raise TypeError(message(f"device must be an int, but got {type(device).__name__}", TYPE))
    if not 0 <= device < native().device_count():
        raise AssertionError(message("Invalid device id", VALUE))
    lazy_init()
    return device


def _check_stream(stream: Any) -> Stream:
    if stream is None:
        raise AssertionError(message("stream cannot be None", PARAMETER))
    if not isinstance(stream, Stream):
        raise AssertionError(message(f"stream should be torch_npu.npu.Stream, could not be {type(stream)}", TYPE))
    lazy_init()
    return stream


def _once(function: Callable[_P, None]) -> Callable[_P, None]:
    """Let a function be called once in a process; a call that fails counts, too."""

    @functools.wraps(function)
    def guarded(*args: _P.args, **kwargs: _P.kwargs) -> None:
        if vars(guarded).get("called"):  # an attribute, as torch_npu keeps it
            raise RuntimeError(
                f"Function '{function.__name__}' has already been called, You can only set this interface once."
            )
        vars(guarded)["called"] = True
        function(*args, **kwargs)

    vars(guarded)["called"] = False
    return guarded


@_once
def set_device_limit(device: int, cube_num: int = _UNTOUCHED, vector_num: int = _UNTOUCHED) -> None:
    """Limit the cores that the process uses of a card, for work from now on. Once in a process.

    Args:
        device: number of the card.
        cube_num: cube cores, at most those of the chip; -1 leaves them as they are.
        vector_num: vector cores, likewise. Set after the cube cores: if this fails, those are set already.

    Raises:
        TypeError: the card's number is not an int.
        AssertionError: no card of that number.
        RuntimeError: 107000, more cores than the chip has; or the function was called before.
    """
    _check_device(device)
    for kind, value in zip(_KINDS, (cube_num, vector_num), strict=True):
        if value != _UNTOUCHED:
            _set(device, _OF_PROCESS, kind, _within(kind, value, "SetDeviceResLimit", ""))


def get_device_limit(device: int) -> dict[str, int]:
    """The process's limits for a card, as {"cube_core_num": ..., "vector_core_num": ...}.

    Raises:
        TypeError, AssertionError: as for `set_device_limit`.
    """
    return in_force(_check_device(device))


def reset_device_limit(device: int) -> None:
    """Take the process's limits for a card away. torch_npu has this as `torch_npu._C._npu_reset_device_res_limit`."""
    _check_device(device)
    for kind in _KINDS:
        _set(device, _OF_PROCESS, kind, _NONE)


def set_stream_limit(stream: Stream, cube_num: int = _UNTOUCHED, vector_num: int = _UNTOUCHED) -> None:
    """Limit the cores that work on a stream uses, from now on, in every thread.

    Args:
        stream: the stream.
        cube_num: cube cores, at most those of the chip; -1 leaves them as they are.
        vector_num: vector cores, likewise. Set after the cube cores: if this fails, those are set already.

    Raises:
        AssertionError: it is not a stream of `torch.npu`.
        RuntimeError: 107000, more cores than the chip has.
    """
    where = _check_stream(stream)
    for kind, value in zip(_KINDS, (cube_num, vector_num), strict=True):
        if value != _UNTOUCHED:
            limit = _within(kind, value, "SetStreamResLimit", "s of a specific stream")
            _set(where.device_index, where.stream_id, kind, limit)


def get_stream_limit(stream: Stream) -> dict[str, int]:
    """The limits that count for work on a stream, as {"cube_core_num": ..., "vector_core_num": ...}.

    Raises:
        AssertionError: it is not a stream of `torch.npu`.
    """
    where = _check_stream(stream)
    return in_force(where.device_index, where.stream_id)


def reset_stream_limit(stream: Stream) -> None:
    """Take a stream's own limits away.

    Raises:
        AssertionError: it is not a stream of `torch.npu`.
    """
    where = _check_stream(stream)
    for kind in _KINDS:
        _set(where.device_index, where.stream_id, kind, _NONE)

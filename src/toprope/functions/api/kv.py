"""Key-value calls of the yr API (`yr.kv_set`, ...): checks of the arguments; the backend keeps the pairs.

For users. Names, defaults, numbers of the enumerations, codes and messages are openYuanrong's; its options of a cluster
(write modes, caches, consistency) are accepted without effect. Waiting for a key is polling, and may be done otherwise.
Tests: tests/functions/test_functions_resource_groups.py (options), tests/functions/test_functions_semantics.py (time).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from toprope.functions import context
from toprope.functions.exceptions import CODES, YRRuntimeError, YRTypeError, YRValueError
from toprope.functions.interrupts import interruptible

__all__ = [
    "CacheType",
    "ConsistencyType",
    "CreateParam",
    "ExistenceOpt",
    "GetParam",
    "GetParams",
    "MSetParam",
    "SetParam",
    "WriteMode",
    "kv_del",
    "kv_get",
    "kv_get_with_param",
    "kv_m_write_tx",
    "kv_read",
    "kv_set",
    "kv_write",
    "kv_write_with_param",
]

_SHORTEST, _LONGEST = 0.002, 0.1
"""Polling interval for a key that is waited for, in seconds."""


class ExistenceOpt(Enum):
    """Condition on a key: any key, or only a new one."""

    NONE, NX = 0, 1


class WriteMode(Enum):
    """Location of a cluster's second copy; no effect on one machine."""

    NONE_L2_CACHE, WRITE_THROUGH_L2_CACHE, WRITE_BACK_L2_CACHE, NONE_L2_CACHE_EVICT = range(4)


class CacheType(Enum):
    """Location of a value in a cluster; no effect here."""

    MEMORY, DISK = range(2)


class ConsistencyType(Enum):
    """Order in which others see changes; here always the order in which they are made."""

    PRAM, CAUSAL = range(2)


@dataclass
class CreateParam:
    """Options of `yr.put`; accepted."""

    write_mode: WriteMode = WriteMode.NONE_L2_CACHE
    consistency_type: ConsistencyType = ConsistencyType.PRAM
    cache_type: CacheType = CacheType.MEMORY


@dataclass
class SetParam:
    """Options of a pair.

    Attributes:
        existence: whether the key may exist already.
        ttl_second: seconds after which it is gone; 0 for never.
    """

    existence: ExistenceOpt = ExistenceOpt.NONE
    write_mode: WriteMode = WriteMode.NONE_L2_CACHE
    ttl_second: int = 0
    cache_type: CacheType = CacheType.MEMORY


@dataclass
class MSetParam:
    """Options of several pairs; see `SetParam`."""

    existence: ExistenceOpt = ExistenceOpt.NX
    write_mode: WriteMode = WriteMode.NONE_L2_CACHE
    ttl_second: int = 0
    cache_type: CacheType = CacheType.MEMORY


@dataclass
class GetParam:
    """A part of a value: `size` bytes from `offset`; 0 for all that follow."""

    offset: int = 0
    size: int = 0


@dataclass
class GetParams:
    """A part of each value."""

    get_params: list[GetParam] = field(default_factory=list)


def kv_set(key: str, value: bytes, set_param: SetParam | None = None) -> None:
    """Store bytes under a key in the session.

    Raises:
        YRTypeError: the value is not bytes.
        YRRuntimeError: only a new key was allowed, and the key exists (4206).
    """
    _write([key], [value], SetParam() if set_param is None else set_param)


def kv_write(
    key: str,
    value: bytes,
    existence: ExistenceOpt = ExistenceOpt.NONE,
    write_mode: WriteMode = WriteMode.NONE_L2_CACHE,
    ttl_second: int = 0,
    cache_type: CacheType = CacheType.MEMORY,
) -> None:
    """Store bytes under a key in the session; see `SetParam`. Errors as for `kv_set`."""
    _write([key], [value], SetParam(existence, write_mode, ttl_second, cache_type))


def kv_get(key: str | list[str], timeout: float = 300) -> Any:
    """Return the bytes under a key, or a list for a list of keys; None for a key that is missing in time.

    Args:
        key: a key, or a list of keys.
        timeout: seconds to wait for a key; -1 for no limit, 0 for no wait.

    Raises:
        YRRuntimeError: none of the keys exists in time (4005).
        ValueError: the timeout is below -1.
    """
    keys = [key] if isinstance(key, str) else list(key)
    if timeout < 0 and timeout != -1:
        raise ValueError("Parameter 'timeout' should be greater than or equal to -1 (no timeout).")
    until = None if timeout == -1 else time.monotonic() + timeout
    pause = _SHORTEST
    while True:
        found = context.backend().pairs.get(keys)
        left = None if until is None else until - time.monotonic()
        if all(each is not None for each in found) or (left is not None and left <= 0):
            break
        _sleep(pause if left is None else min(pause, left))
        pause = min(2 * pause, _LONGEST)
    if keys and all(each is None for each in found):
        raise YRRuntimeError(
            f"Get timeout {1000 * timeout:g}ms from datasystem, all failed: there is no key {', '.join(keys)}",
            CODES["get failed"],
            30,
        )
    return found[0] if isinstance(key, str) else found


def kv_read(key: str | list[str], timeout: float = 300) -> Any:
    """As `kv_get`."""
    return kv_get(key, timeout)


def kv_del(key: str | list[str]) -> list[str]:
    """Delete keys. Return those that did not exist."""
    return context.backend().pairs.delete([key] if isinstance(key, str) else key)


def kv_write_with_param(key: str, value: bytes, set_param: SetParam) -> None:
    """Store bytes under a key.

    Raises:
        YRTypeError: the value is not bytes.
        YRRuntimeError: only a new key was allowed, and the key exists (4206).
    """
    _write([key], [value], set_param)


def kv_m_write_tx(keys: list[str], values: list[bytes], m_set_param: MSetParam | None = None) -> None:
    """Store bytes under several new keys, all or none.

    Raises:
        YRValueError: there are not as many values as keys, or existing keys were to be allowed.
        YRTypeError: a value is not bytes.
        YRRuntimeError: one of the keys exists (4206).
    """
    param = MSetParam() if m_set_param is None else m_set_param
    if len(keys) != len(values) or not keys or len(set(keys)) < len(keys):
        raise YRValueError(
            f"invalid keys or values: {len(keys)} keys, {len(set(keys))} of them different, and {len(values)} values",
            CODES["invalid parameter"],
        )
    if param.existence is not ExistenceOpt.NX:
        raise YRValueError("invalid existence: several pairs at once must be new (ExistenceOpt.NX)", 1001)
    _write(keys, values, param)


def kv_get_with_param(keys: list[str], params: GetParams, timeout: float = 300) -> list[Any]:
    """Return the requested part of each value; None for a key that is missing in time.

    Raises:
        ValueError: there are no parts, or not as many as keys.
        OverflowError: a part is negative.
        YRRuntimeError: none of the keys exists in time (4005).
    """
    if not params.get_params:
        raise YRValueError("Get params does not accept empty list", CODES["invalid parameter"])
    if len(params.get_params) != len(keys):
        raise YRValueError(
            f"Get params size is not equal to keys size, actual: {len(params.get_params)} and {len(keys)}",
            CODES["invalid parameter"],
        )
    if any(each.offset < 0 or each.size < 0 for each in params.get_params):
        raise OverflowError("can't convert negative value to uint64_t")
    found = kv_get(list(keys), timeout)
    return [
        None if value is None else value[part.offset : part.offset + part.size if part.size else None]
        for value, part in zip(found, params.get_params, strict=True)
    ]


def _write(keys: Sequence[str], values: Sequence[bytes], param: SetParam | MSetParam) -> None:
    for value in values:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise YRTypeError(f"invalid value type, actual: {type(value)}, expect: bytes", CODES["invalid parameter"])
    ttl = param.ttl_second
    if not isinstance(ttl, int | float) or isinstance(ttl, bool) or ttl < 0:
        raise YRValueError(f"invalid ttl_second: {ttl!r}, expect: seconds, 0 for no limit", CODES["invalid parameter"])
    pairs = {key: bytes(value) for key, value in zip(keys, values, strict=True)}
    only_new = getattr(param.existence, "value", param.existence) == ExistenceOpt.NX.value
    there = context.backend().pairs.set_all(pairs, only_new=only_new, ttl=ttl)
    if there:
        raise YRRuntimeError(f"the key {there} exists", 4206, 30)


@interruptible
def _sleep(seconds: float) -> None:
    time.sleep(seconds)

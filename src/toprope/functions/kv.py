"""Key-value calls of the yr API that take their options as an object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from toprope.functions import current
from toprope.functions.api import kv_get
from toprope.functions.exceptions import CODES, YRTypeError, YRValueError

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
    "kv_get_with_param",
    "kv_m_write_tx",
    "kv_write_with_param",
]


class ExistenceOpt(Enum):
    """Whether a key may be there already: any, or only new ones."""

    NONE, NX = 0, 1


class WriteMode(Enum):
    """Where a cluster keeps a second copy; without effect on one machine."""

    NONE_L2_CACHE, WRITE_THROUGH_L2_CACHE, WRITE_BACK_L2_CACHE, NONE_L2_CACHE_EVICT = range(4)


class CacheType(Enum):
    """Where a cluster keeps a value; without effect here."""

    MEMORY, DISK = range(2)


class ConsistencyType(Enum):
    """In which order others see changes: here always in the order in which they are made."""

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
        existence: whether the key may be there already.
        ttl_second: seconds after which it would go; only 0, never, is part of toprope.
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


def kv_write_with_param(key: str, value: bytes, set_param: SetParam) -> None:
    """Keep bytes under a key.

    Raises:
        YRTypeError: the value is not bytes.
        YRRuntimeError: only a new key was asked for, and it is there (4206).
    """
    _write([key], [value], set_param)


def kv_m_write_tx(keys: list[str], values: list[bytes], m_set_param: MSetParam | None = None) -> None:
    """Keep bytes under several new keys, all or none.

    Raises:
        YRValueError: there are not as many values as keys, or existing keys were to be allowed.
        YRTypeError: a value is not bytes.
        YRRuntimeError: one of the keys is there (4206).
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
    """The part of each value that is asked for; None for a key that is not there.

    Raises:
        YRValueError: there are not as many parts as keys.
    """
    if len(params.get_params) != len(keys):
        raise YRValueError(
            f"invalid get params: {len(params.get_params)} for {len(keys)} keys", CODES["invalid parameter"]
        )
    found = kv_get(list(keys), timeout)
    return [
        None if value is None else value[part.offset : part.offset + part.size if part.size else None]
        for value, part in zip(found, params.get_params, strict=True)
    ]


def _write(keys: Sequence[str], values: Sequence[bytes], param: SetParam | MSetParam) -> None:
    for value in values:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise YRTypeError(f"invalid value type, actual: {type(value)}, expect: bytes", CODES["invalid parameter"])
    if param.ttl_second:
        raise NotImplementedError("ttl_second is not part of toprope: delete keys with yr.kv_del")
    pairs = {key: bytes(value) for key, value in zip(keys, values, strict=True)}
    current.backend().request("kv_set_all", pairs, param.existence is ExistenceOpt.NX)

"""Registry of message types: serialization of values, and their reconstruction.

Users register classes (`msg_type_register`); `convert`, stages and the UDF interface make messages of values by
`wrap` and values of messages by `unwrap`. The methods and the numbers of types are fixed by CANN's dataflow API
(`stage.spec`). Tests: tests/flow/test_flow_tensor.py, tests/flow/test_flow_assertions.py.
"""

from __future__ import annotations

import pickle
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from toprope.flow.exceptions import DfException
from toprope.flow.stage.spec import EMPTY, PICKLED, RAW, TENSOR, TORCH
from toprope.flow.tensor import Tensor

__all__ = ["MsgTypeRegister", "msg_type_register", "unwrap", "wrap"]

FIRST_OF_USER = 1024
"""The lowest number of a type of the user's."""


class _Entry(NamedTuple):
    msg_type: int
    cls: type
    serialize: Callable[[Any], Any]
    deserialize: Callable[[memoryview], Any]
    size: Callable[[Any], int] | None


class MsgTypeRegister:
    """The registered message types. Tensors and picklable objects need no type of their own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_type: dict[int, _Entry] = {}
        self._by_class: dict[type, _Entry] = {}

    def register(
        self, msg_type: int, clz: type, serialize_func: Callable[[Any], Any],
        deserialize_func: Callable[[memoryview], Any], size_func: Callable[[Any], int] | None = None,
    ) -> None:  # fmt: skip
        """Make a type known. It is sent along to the stages of graphs that start afterwards.

        Args:
            msg_type: its number; 1024 to 65534 are the user's.
            clz: the class; objects of this class itself are sent so, not those of subclasses.
            serialize_func: makes bytes of an object.
            deserialize_func: makes an object of a memoryview.
            size_func: returns the number of bytes in advance; it is not needed.

        Raises:
            DfException: the number or the class is taken by another one.
            TypeError: an argument is of another type.
        """
        if type(msg_type) is not int or not isinstance(clz, type):
            raise TypeError(f"register takes a number and a class, got {msg_type!r} and {clz!r}")
        if not callable(serialize_func) or not callable(deserialize_func):
            raise TypeError("serialize_func and deserialize_func must be functions")
        with self._lock:
            known = self._by_type.get(msg_type)
            if known is not None and known.cls is not clz:
                raise DfException(f"message type {msg_type} is registered for {known.cls.__name__}")
            other = self._by_class.get(clz)
            if other is not None and other.msg_type != msg_type:
                raise DfException(f"{clz.__name__} is registered as message type {other.msg_type}")
            entry = _Entry(msg_type, clz, serialize_func, deserialize_func, size_func)
            self._by_type[msg_type] = self._by_class[clz] = entry

    def registered(self, msg_type: int) -> bool:
        """True if a number is registered."""
        return msg_type in self._by_type or msg_type == PICKLED

    def get_msg_type(self, clz: type) -> int | None:
        """The number of a class; None where it has none."""
        entry = self._by_class.get(clz)
        return entry.msg_type if entry else None

    def get_serialize_func(self, msg_type: int) -> Callable[[Any], Any] | None:
        """Return the serializer; None for an unknown number."""
        entry = self._by_type.get(msg_type)
        if entry is None and msg_type == PICKLED:
            from toprope.functions.transport.serialization import dumps

            return dumps
        return entry.serialize if entry else None

    def get_deserialize_func(self, msg_type: int) -> Callable[[Any], Any] | None:
        """Return the deserializer; None for an unknown number."""
        entry = self._by_type.get(msg_type)
        if entry is None and msg_type == PICKLED:
            return pickle.loads
        return entry.deserialize if entry else None

    def get_size_func(self, msg_type: int) -> Callable[[Any], int] | None:
        """Return the size function; None if there is none."""
        entry = self._by_type.get(msg_type)
        return entry.size if entry else None

    def deserialize_from_file(self, pkl: str, work_path: str | None = None) -> Any:
        """Load the pickle in a file, which must be trusted.

        Args:
            pkl: the file.
            work_path: the folder it lies in, where that is no part of the name.
        """
        with open(Path(work_path or "") / pkl, "rb") as file:
            return pickle.load(file)

    def pickled(self) -> bytes:
        """A pickle that makes the same types known where it is read; empty where there are none."""
        if not self._by_type:
            return b""
        from toprope.functions.transport.serialization import dumps

        return dumps(_Restored(tuple(self._by_type.values())))


class _Restored:
    """Registers types where it is unpickled."""

    def __init__(self, entries: tuple[_Entry, ...]) -> None:
        self._entries = entries

    def __reduce__(self) -> Any:
        return _restore, (self._entries,)


def _restore(entries: tuple[_Entry, ...]) -> None:
    for each in entries:
        if not msg_type_register.registered(each.msg_type):
            msg_type_register.register(*each)


msg_type_register = MsgTypeRegister()
"""The types of this process."""


def wrap(value: Any) -> tuple[int, Any]:
    """A value as kind and payload of a message.

    Raises:
        Whatever the serializer of its class raises; TypeError where that makes no bytes.
    """
    if value is None:
        return EMPTY, None
    if isinstance(value, Tensor):
        array = value.numpy(copy=value._array.dtype.kind == "S")
        return TENSOR, array
    entry = msg_type_register._by_class.get(type(value))
    if entry is not None:
        data = entry.serialize(value)
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"the serializer of {type(value).__name__} must make bytes, got {type(data).__name__}")
        return entry.msg_type, data
    if is_torch_tensor(value):
        return TORCH, value
    return PICKLED, value


def unwrap(kind: int, payload: Any) -> Any:
    """The value of a message.

    Raises:
        DfException: its type is not registered here.
        Whatever the deserializer raises.
    """
    if kind == TENSOR:
        return Tensor.over(payload)
    if kind in (EMPTY, PICKLED, TORCH):
        return payload
    if kind == RAW:
        return memoryview(payload)
    deserialize = msg_type_register.get_deserialize_func(kind)
    if deserialize is None:
        raise DfException(f"message type {kind} is not registered")
    return deserialize(memoryview(payload))


def is_torch_tensor(value: Any) -> bool:
    """True for a torch.Tensor, including parameters and other subclasses; does not import torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)

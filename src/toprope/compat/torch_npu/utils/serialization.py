"""Facade module: torch.save in the background; a thread copies the values from the card on a stream of its own.

`torch_npu.utils.save_async` is the call. Arguments and the file are torch.save's, so that torch.load reads it; the name
of the thread and what a later step may overtake are torch_npu's. How the copies are made is free. Tests:
tests/compat/test_torch_npu_utils.py.
"""

from __future__ import annotations

import io
import pickle
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.serialization import (
    DEFAULT_PROTOCOL,
    _check_dill_version,
    _open_zipfile_writer,
    location_tag,
)

from .._error_codes import ErrCode, pta_error
from .._facade import current_npu

__all__ = ["save_async"]

_streams: dict[int, Any] = {}
_copies: dict[int, list[threading.Event]] = {}
"""By card: the stream of its copies, and events of those that a thread has yet to queue there."""

_hooked: weakref.WeakKeyDictionary[torch.nn.Module, Any] = weakref.WeakKeyDictionary()


def save_async(
    obj: object,
    f: Any,
    pickle_module: Any = pickle,
    pickle_protocol: int = DEFAULT_PROTOCOL,
    _use_new_zipfile_serialization: bool = True,
    _disable_byteorder_record: bool = False,
    model: torch.nn.Module | None = None,
) -> None:
    """Save an object as torch.save does, and return before its tensors are copied and written.

    The file gets the values that the tensors have when the thread copies them. A program that changes them before has
    a race, as on a card, unless it gives `model`.

    Args:
        obj: object to save; it is pickled before the call returns.
        f: path, or file open for writing.
        pickle_module: pickle, or a module with its names.
        pickle_protocol: number of the protocol.
        _use_new_zipfile_serialization: only True.
        _disable_byteorder_record: without effect, as with torch_npu.
        model: module whose backward passes wait until the copies are done, and with them the optimizer's step.

    Raises:
        RuntimeError: the old format is asked for, or tensors of several dtypes share one memory.
    """
    if not _use_new_zipfile_serialization:
        raise RuntimeError(
            "save_async does not write the old format: leave _use_new_zipfile_serialization at True, or save tensors on"
            " the CPU with torch.save." + pta_error(ErrCode.PARAM)
        )
    _check_dill_version(pickle_module)
    npu = current_npu()
    device = int(npu.current_device())
    if device not in _streams:
        _streams[device] = npu.Stream()
    if isinstance(model, torch.nn.Module) and model not in _hooked:
        _hooked[model] = model.register_full_backward_hook(_wait_for_copies)
    pickled = _pickled(obj, pickle_module, pickle_protocol)
    before = npu.Event()
    before.record()
    queued = threading.Event()
    _copies.setdefault(device, []).append(queued)
    threading.Thread(target=_copy_and_write, args=(pickled, f, device, before, queued), name="save_async").start()


@dataclass
class _Pickled:
    data: bytes = b""
    storages: dict[str, Any] = field(default_factory=dict)


def _copy_and_write(pickled: _Pickled, f: Any, device: int, before: Any, queued: threading.Event) -> None:
    npu = current_npu()
    npu.set_device(device)
    stream = _streams[device]
    try:
        with npu.stream(stream):
            stream.wait_event(before)
            values = {key: storage.cpu() for key, storage in pickled.storages.items()}
        stream.synchronize()
    finally:
        queued.set()
        _copies[device].remove(queued)
    with _open_zipfile_writer(f) as archive:
        archive.write_record("data.pkl", pickled.data, len(pickled.data))
        for key, storage in values.items():
            archive.write_record(f"data/{key}", storage, storage.nbytes())


def _wait_for_copies(module: torch.nn.Module, *gradients: Any) -> None:
    npu = current_npu()
    device = int(npu.current_device())
    for queued in list(_copies.get(device, ())):
        queued.wait()
    if device in _streams:
        npu.current_stream().wait_stream(_streams[device])


def _pickled(obj: object, pickle_module: Any, protocol: int) -> _Pickled:
    """Pickle of an object, and the storages that it refers to, as in the files of torch.save."""
    result = _Pickled()
    keys: dict[int, str] = {}
    dtypes: dict[int, torch.dtype] = {}

    def named(entry: Any) -> tuple[Any, ...] | None:
        storage: Any
        if isinstance(entry, torch.storage.TypedStorage):
            typed: Any = entry
            storage, dtype = typed._untyped_storage, typed.dtype
            kind = getattr(torch, typed._pickle_storage_type())
            count = typed._size()
        elif torch.is_storage(entry):
            storage, dtype, kind, count = entry, torch.uint8, torch.UntypedStorage, entry.nbytes()
        else:
            return None
        address = storage.data_ptr()
        if address and dtypes.setdefault(address, dtype) != dtype:
            raise RuntimeError(
                "Cannot save multiple tensors or storages that view the same data as different types"
                + pta_error(ErrCode.VALUE)
            )
        key = keys.setdefault(storage._cdata, str(len(keys)))
        result.storages[key] = storage
        return ("storage", kind, key, location_tag(storage), count)

    class Pickler(pickle_module.Pickler):  # type: ignore[misc]
        def persistent_id(self, entry: Any) -> tuple[Any, ...] | None:
            return named(entry)

    buffer = io.BytesIO()
    with _without_hooks():
        Pickler(buffer, protocol=protocol).dump(obj)
    result.data = buffer.getvalue()
    return result


@contextmanager
def _without_hooks() -> Iterator[None]:
    """Take `_wait_for_copies` out of its modules: the file is not to need toprope when it is loaded."""
    taken = []
    for module, handle in _hooked.items():
        hook = module._backward_hooks.pop(handle.id, None)
        if hook is not None:
            taken.append((module, handle.id, hook))
    try:
        yield
    finally:
        for module, number, hook in taken:
            module._backward_hooks[number] = hook

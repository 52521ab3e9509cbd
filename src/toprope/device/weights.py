"""Files of weights: mapped into memory as the CPU's, then copied to the device piece by piece.

The mapped pages are given back as they are copied, so that a file larger than the host's memory can be loaded too:
`PIECE` decides how much of the host's memory is used, and `toprope.device.load` promises at most 64 MB.

Called by `Device.load` and `toprope.device.load`. The formats are those of safetensors and torch.save, which read them;
pickles are read with `weights_only` alone. Tests: tests/device/test_device_weights.py;
tests/sim/simulated/test_device_weights.py for the copy to a card.
"""

from __future__ import annotations

import copy
import ctypes
import mmap
import os
import pickle
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from toprope.errors import UsageError, WeightsError

__all__ = ["load_file"]

PIECE = 32 * 2**20
"""Bytes copied at a time: the host's share of memory, and large enough for a copy to go past the processor's caches."""

_BESIDE = re.compile(r"GLOBAL (\S+) was not an allowed global")
_ZIP, _PICKLE = b"PK\x03\x04", b"\x80"
_GIVE_BACK = 4  # MADV_DONTNEED: pages of a file that nobody wrote to are read again when they are needed


def load_file(path: str | os.PathLike[str], device: torch.device, *, dtype: torch.dtype | None = None) -> Any:
    """The contents of a file of weights, on a device; see `toprope.device.load`."""
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise UsageError(f"{dtype!r} is no torch.dtype.", do="give one such as torch.bfloat16, or none")
    if dtype is not None and not dtype.is_floating_point:
        raise WeightsError(f"{dtype} is not a floating-point type.", do="give one such as torch.bfloat16, or none")
    file = Path(path)
    with file.open("rb") as stream:
        start = stream.read(9)
    # safetensors begins with eight bytes for the size of a header in JSON; those bytes may look like anything.
    # An archive of torch.save begins as a zip file, an older one as a pickle.
    if start[8:] != b"{" and (start[:4] == _ZIP or start[:1] == _PICKLE):
        mapped = start[:4] == _ZIP
        return _load_checkpoint(file, _Mover(device, dtype, mapped=mapped), mapped=mapped)
    return _load_safetensors(file, _Mover(device, dtype, mapped=True))


def _load_safetensors(file: Path, move: _Mover) -> dict[str, torch.Tensor]:
    """Load the tensors of a safetensors file in the file's order, and return them in its own."""
    try:
        with safe_open(file, framework="pt", device="cpu") as opened:
            in_the_order_of_the_file = opened.offset_keys() if hasattr(opened, "offset_keys") else opened.keys()
            moved = {name: move.tensor(opened.get_tensor(name)) for name in in_the_order_of_the_file}
            return {name: moved[name] for name in opened.keys()}  # noqa: SIM118 - no mapping, it has no __iter__
    except SafetensorError as error:
        raise WeightsError(
            f"{file} is no file of weights: {error}.",
            looked_at=f"its {file.stat().st_size} bytes; safetensors, and the formats of torch.save",
            do="check that it was downloaded whole, and that it is not a pointer of Git LFS",
        ) from error


def _load_checkpoint(file: Path, move: _Mover, *, mapped: bool) -> Any:
    """Load what torch.save wrote, weights alone."""
    try:
        saved = torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, OSError) as error:
        beside = _BESIDE.search(str(error)) if isinstance(error, pickle.UnpicklingError) else None
        if beside is not None:
            raise WeightsError(
                f"{file} has more in it than weights: {beside[1]}.",
                looked_at="torch.load(weights_only=True)",
                do="save its state_dict alone; or, where you trust its author, torch.load(weights_only=False)",
            ) from error
        raise WeightsError(
            f"{file} is no checkpoint of torch.save, or is damaged: {_first_sentence(error)}",
            looked_at=f"its {file.stat().st_size} bytes",
            do="check that it was downloaded whole",
        ) from error
    return move.everything(saved)


def _first_sentence(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text.partition(". ")[0].rstrip(".") + "."


class _Mover:
    """Moves the tensors of one file to a device."""

    def __init__(self, device: torch.device, dtype: torch.dtype | None, *, mapped: bool) -> None:
        self._to = device
        self._dtype = dtype
        self._mapped = mapped
        self._moved: dict[tuple[int, torch.dtype], torch.Tensor] = {}  # storages of a checkpoint, by address

    def tensor(self, source: torch.Tensor) -> torch.Tensor:
        """A contiguous tensor on the device."""
        return self._piece_by_piece(source.view(-1)).view(source.size())

    def everything(self, value: Any) -> Any:
        """The saved object, with its tensors on the device; containers are copied, of the same type."""
        if self._to.type == "cpu" and self._dtype is None:
            return value
        if isinstance(value, torch.Tensor):
            return self._shared(value)
        if isinstance(value, dict):
            made = copy.copy(value)  # with its order, and the _metadata of a state_dict
            made.update((key, self.everything(each)) for key, each in value.items())
            return made
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(self.everything, value))
        if type(value) in (list, tuple):
            return type(value)(map(self.everything, value))
        return value

    def _shared(self, source: torch.Tensor) -> torch.Tensor:
        """A tensor of a checkpoint on the device, by way of its storage: tensors that shared one still do."""
        plain = source.detach()
        if plain.layout is not torch.strided or plain.is_quantized:
            moved = plain.to(self._to)
        else:
            storage = plain.untyped_storage()
            key = storage.data_ptr(), plain.dtype
            if key not in self._moved:
                whole = torch.empty(0, dtype=plain.dtype).set_(storage)
                self._moved[key] = self._piece_by_piece(whole)
            moved = self._moved[key].as_strided(plain.size(), plain.stride(), plain.storage_offset())
        if isinstance(source, torch.nn.Parameter):
            return torch.nn.Parameter(moved, requires_grad=source.requires_grad)
        return moved.requires_grad_(source.requires_grad)

    def _piece_by_piece(self, source: torch.Tensor) -> torch.Tensor:
        """A tensor of one dimension on the device."""
        dtype = self._dtype if self._dtype is not None and source.is_floating_point() else source.dtype
        if self._to.type == "cpu":
            return source.to(dtype)
        target = torch.empty(source.size(), dtype=dtype, device=self._to)
        step = PIECE // source.element_size() // (1 if dtype is source.dtype else 2)
        for begin in range(0, source.numel(), step):
            piece = source[begin : begin + step]
            target[begin : begin + step].copy_(piece.to(dtype))
            if self._mapped:
                _give_back(piece)
        return target


def _give_back(piece: torch.Tensor) -> None:
    """Let the system take back the pages of a mapped file that only this piece lies on."""
    begin = -(-piece.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (piece.data_ptr() + piece.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if end > begin:
        _libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _GIVE_BACK)


_libc = ctypes.CDLL(None)

"""A safetensors file that is written and read in pieces, and is there whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch

from toprope.errors import TierCapacityError, TierReadError, TierWriteError, WeightsError
from toprope.sizes import decimal
from toprope.tiers.headers import Stored, read_header

__all__ = ["Entry", "Reader", "write_file"]

_NAMES = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.int32: "I32",
    torch.int64: "I64", torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64", torch.float16: "F16",
    torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64", torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.float8_e8m0fnu: "F8_E8M0",
}  # fmt: skip
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


class Entry:
    """A tensor to be written: its name, dtype and shape, and where its pieces come from, in the order of rows."""

    def __init__(self, name: str, dtype: torch.dtype, shape: Sequence[int], pieces: Iterable[torch.Tensor]) -> None:
        if dtype not in _NAMES:
            raise WeightsError(f"{name} is of {dtype}, which a safetensors file cannot hold.", do="convert it")
        self.name, self.dtype, self.shape, self.pieces = name, dtype, tuple(shape), pieces

    @property
    def nbytes(self) -> int:
        """Its bytes in the file."""
        count = 1
        for size in self.shape:
            count *= size
        return count * self.dtype.itemsize


def write_file(path: Path, entries: Sequence[Entry], note: dict[str, str]) -> None:
    """Write beside the file, reach the disk, take its place: whatever happens, it is the old one or the new one.

    Raises:
        TierCapacityError: the disk is full. The file is as it was.
        TierWriteError: it cannot be written for another reason. The file is as it was.
    """
    header: dict[str, object] = {"__metadata__": note}
    at = 0
    for entry in entries:
        header[entry.name] = {
            "dtype": _NAMES[entry.dtype], "shape": entry.shape, "data_offsets": [at, at + entry.nbytes]
        }  # fmt: skip
        at += entry.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with aside.open("xb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for entry in entries:
                for piece in entry.pieces:
                    file.write(_bytes(piece.detach().cpu().contiguous()))
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise TierWriteError(
                f"the checkpoint {path} cannot be written: {error.strerror}.",
                do="check the folder and the disk; the checkpoint that was there before still is",
            ) from error
        raise TierCapacityError(
            f"the disk has no room for the checkpoint {path}.",
            looked_at=f"it takes {decimal(8 + len(text) + at)}",
            do="make room there, or write it to another disk; the checkpoint that was there before still is",
        ) from None
    finally:
        aside.unlink(missing_ok=True)


class Reader:
    """Reads tensors of a file, piece by piece.

    Raises:
        WeightsError: it cannot be read, or is no whole safetensors file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tensors: dict[str, Stored] = {each.name: each for each in read_header(path)}
        self._file = path.open("rb", buffering=0)

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def dtype(self, name: str) -> torch.dtype | None:
        """The dtype of a tensor, None where torch has none for it."""
        return _DTYPES.get(self.tensors[name].dtype)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """Elements of a tensor in the order of rows, as one dimension in host memory."""
        tensor = self.tensors[name]
        dtype = _DTYPES[tensor.dtype]
        stop = tensor.bytes // dtype.itemsize if stop is None else stop
        out = torch.empty(stop - start, dtype=dtype)
        view, at = _bytes(out), tensor.begin + start * dtype.itemsize
        while view:
            try:
                count = os.preadv(self._file.fileno(), [view], at)
            except OSError as error:
                raise TierReadError(
                    f"the checkpoint {self.path} cannot be read: {error.strerror}.",
                    looked_at=f"{name}, at byte {at}",
                    do="check the disk, or take another checkpoint",
                ) from error
            if not count:
                raise WeightsError(f"{self.path} ends in the middle of {name}.", do="take another checkpoint")
            view, at = view[count:], at + count
        return out

    def pieces(self, name: str, most: int) -> Iterator[tuple[int, torch.Tensor]]:
        """A tensor's elements, at most so many at a time, each with the place of the first."""
        tensor = self.tensors[name]
        count = tensor.bytes // _DTYPES[tensor.dtype].itemsize
        for start in range(0, count, most):
            yield start, self.read(name, start, min(start + most, count))


def _bytes(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous tensor on the host."""
    if not tensor.numel():
        return memoryview(b"")
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]

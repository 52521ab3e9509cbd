"""Homes of weights that stay encoded as 8-bit codes with scales until they are loaded into a slot.

Also homes of weights with parts in several places, such as the experts of a layer that are one tensor in the model.
`engine.model.weight_files` makes them for FP8 checkpoints, `attach` for fused experts. Decoded values must have the
bits of the model's own library, on the host and on a device alike. Tests: tests/tiers/test_tiers_codes.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import torch

from toprope.device import Device
from toprope.tiers.store.backing import DiskHome, Home, MemoryHome
from toprope.tiers.store.chunks import SERIAL, cut, deliver
from toprope.tiers.store.disk_file import DiskFile
from toprope.tiers.store.memory import Memory, move
from toprope.tiers.store.transfer import CHUNK, Chunk, Load, Worker

__all__ = ["CodedHome", "Coding", "DeviceTable", "JoinedHome", "decode_on"]

_PIECE = 2**20
"""Largest number of elements decoded at a time on a device with its own memory."""


class DeviceTable:
    """Table of the values of all codes in a device's memory, so that decoding needs no 8-bit types on the device.

    Args:
        device: a device with its own memory.
        codes: dtype of the codes.
        piece: number of elements that each thread decodes at a time.
    """

    BYTES = 9
    """Bytes per element during decoding: the code, the code as an index, the value in fp32."""

    def __init__(self, device: Device, codes: torch.dtype, piece: int) -> None:
        self.piece = piece
        self.values = _numbers(codes).to(device.torch_device)

    def decode(self, codes: torch.Tensor, coding: Coding, scales: torch.Tensor, skipped: int) -> torch.Tensor:
        """Decode whole rows of codes on the device.

        Args:
            codes: flat uint8 tensor of the rows' codes, on the device.
            coding: the weight's coding.
            scales: scales of the blocks that have the rows, on the device.
            skipped: number of rows of the first block before these rows.
        """
        made = self.values.index_select(0, codes.to(torch.int32))
        rows = scales.unsqueeze(1).expand(-1, coding.block[0], -1).reshape(-1, scales.shape[1])
        factors = rows[skipped : skipped + codes.numel() // coding.columns]
        made.view(*factors.shape, -1).mul_(factors.unsqueeze(-1))
        for dtype in coding.casts:
            made = made.to(dtype)
        return made


def _numbers(codes: torch.dtype) -> torch.Tensor:
    return torch.arange(256, dtype=torch.int32).to(torch.uint8).view(codes).to(torch.float32)


class Coding:
    """Decoding of a weight: code x scale of its block in fp32, with the same result as the model's library.

    Args:
        codes: dtype of the codes.
        columns: number of elements in a row.
        scales: fp32 tensor [blocks of rows, blocks of columns], on the host.
        block: rows and columns of a block; the last blocks may have fewer.
        casts: dtypes that the products are converted to, one after another.
    """

    def __init__(
        self,
        codes: torch.dtype,
        columns: int,
        scales: torch.Tensor,
        block: tuple[int, int],
        casts: tuple[torch.dtype, ...],
    ) -> None:
        self.codes, self.columns, self.scales, self.block, self.casts = codes, columns, scales, block, casts
        self.there: DeviceTable | None = None
        """Table for decoding on a device with its own memory; None for decoding on the host."""

    @property
    def dtype(self) -> torch.dtype:
        """The weight's dtype on the device."""
        return self.casts[-1]

    def cast(self, dtype: torch.dtype) -> Coding:
        """A coding that converts to another dtype in addition."""
        made = Coding(self.codes, self.columns, self.scales, self.block, (*self.casts, dtype))
        made.there = self.there
        return made

    def blocks(self, first: int, last: int) -> torch.Tensor:
        """Scales of the blocks that have the rows from `first` to `last`."""
        return self.scales[first // self.block[0] : (last - 1) // self.block[0] + 1]

    def factors(self, first: int, count: int) -> torch.Tensor:
        """Scales of `count` elements, one per element."""
        begin, end = first // self.columns, -(-(first + count) // self.columns)
        blocks = self.scales[torch.arange(begin, end) // self.block[0]].unsqueeze(-1)
        wide = blocks.expand(-1, -1, self.block[1]).reshape(end - begin, -1)[:, : self.columns]
        return wide.reshape(-1)[first - begin * self.columns :][:count]

    def decode(self, raw: torch.Tensor, first: int) -> torch.Tensor:
        """Decode elements on the host.

        Args:
            raw: their codes, uint8.
            first: index of the first element in the weight.
        """
        made = torch.empty(raw.numel(), dtype=self.dtype)
        for start in range(0, raw.numel(), SERIAL):
            piece = raw[start : start + SERIAL].view(self.codes).to(torch.float32)
            piece *= self.factors(first + start, piece.numel())
            for dtype in self.casts:
                piece = piece.to(dtype)
            made[start : start + SERIAL] = piece
        return made


class _DecodeChunk:
    """Read codes from a file or the host's memory, and write the decoded values to the target."""

    __slots__ = ("coding", "count", "first", "source", "target")

    def __init__(
        self, source: Memory | tuple[DiskFile, int], coding: Coding, first: int, count: int, target: Memory
    ) -> None:
        self.source, self.coding, self.first, self.count, self.target = source, coding, first, count, target

    def run(self, worker: Worker, load: Load) -> None:
        """Read codes, decode them and write the values to the target."""
        begin, read = time.perf_counter(), ""
        if isinstance(self.source, Memory):
            raw = self.source.tensor
        else:
            file, offset = self.source
            at, moved, _ = file.read_aside(offset, self.count, worker.buffer)
            raw = worker.memory.tensor[at : at + self.count]
            read = "disk_read" if moved else "page_cache"
            worker.moved[read] += moved or self.count
        crossed = self.count
        if self.target.address is not None:
            made = self.coding.decode(raw, self.first).view(torch.uint8)
            move(self.target.address, made.data_ptr(), made.numel())
        elif self._whole_rows():
            crossed += self._decode_there(worker, load, raw)
        else:
            made = self.coding.decode(raw, self.first).view(torch.uint8)
            deliver(worker, load, self.target, made, stay=True)
            crossed = made.numel()
        if worker.link is not None:
            worker.link.carry(crossed, begin)
        if not read or self.target.address is None:
            worker.moved["host_to_device"] += crossed
        worker.busy["disk_read" if read else "host_to_device"] += time.perf_counter() - begin

    def _whole_rows(self) -> bool:
        columns, width = self.coding.columns, self.coding.block[1]
        whole = self.first % columns == 0 and self.count % columns == 0 and columns % width == 0
        return self.coding.there is not None and whole

    def _decode_there(self, worker: Worker, load: Load, raw: torch.Tensor) -> int:
        """Decode on the device; return the bytes of scales that were copied to it."""
        coding, device = self.coding, worker.device
        assert coding.there is not None
        assert device is not None
        with device.as_current(), device.on_stream(worker.stream):
            codes = torch.empty(self.count, dtype=torch.uint8, device=device.torch_device)
            begin = self.first // coding.columns
            scales = coding.blocks(begin, begin + self.count // coding.columns).to(device.torch_device)
            deliver(worker, load, Memory(codes), raw, stay=True)
            made = coding.there.decode(codes, coding, scales, begin % coding.block[0])
            deliver(worker, load, self.target, made.view(torch.uint8), stay=True)
        return scales.nbytes


class CodedHome(Home):
    """A home with codes in a file or in the host's memory.

    Args:
        codes: home of the codes as bytes.
        coding: the decoding.
    """

    def __init__(self, codes: DiskHome | MemoryHome, coding: Coding) -> None:
        self.codes, self.coding = codes, coding
        self.count = codes.nbytes

    @property
    def tier(self) -> Literal["host", "disk"]:
        """The tier of the codes."""
        return self.codes.tier

    @property
    def nbytes(self) -> int:
        """Of the weight on the device."""
        return self.count * self.coding.dtype.itemsize

    @property
    def host_bytes(self) -> int:
        """Bytes of the codes."""
        return self.count

    def cast(self, dtype: torch.dtype) -> CodedHome:
        """A home that converts to another dtype in addition."""
        return CodedHome(self.codes, self.coding.cast(dtype))

    def chunks(self, target: Memory, start: int = 0) -> list[Chunk]:
        """Chunks that read and decode the codes."""
        size = self.coding.dtype.itemsize
        most = CHUNK // size
        if target.address is None and self.coding.there is not None:
            columns = self.coding.columns
            most = max(1, min(most, self.coding.there.piece) // columns) * columns
            most = most if most <= CHUNK else CHUNK // size
        origin = start // size
        return [
            _DecodeChunk(
                self._source(origin + first, last - first),
                self.coding,
                origin + first,
                last - first,
                target.part(first * size, last * size),
            )
            for first, last in cut(target.nbytes // size, most, most)
        ]

    def _source(self, first: int, count: int) -> Memory | tuple[DiskFile, int]:
        if isinstance(self.codes, MemoryHome):
            return self.codes.memory.part(first, first + count)
        return self.codes.file, self.codes.offset + first

    def host_chunks(self, memory: Memory) -> list[Chunk]:
        """Reads or copies of the codes."""
        return self.codes.host_chunks(memory)

    def on_host(self, memory: Memory) -> CodedHome:
        """A home with the codes in the host's memory."""
        return CodedHome(MemoryHome(memory), self.coding)

    def check(self) -> None:
        """Raise if the file is not the one that it was."""
        self.codes.check()

    def release(self) -> None:
        """Nothing: files are the model's own, and memory goes with its last reference."""


class JoinedHome(Home):
    """A home of a weight whose bytes are in several places.

    Args:
        parts: homes of its parts in the order of the weight's bytes; all in the same tier.
    """

    def __init__(self, parts: Sequence[DiskHome | CodedHome | MemoryHome]) -> None:
        self.parts = list(parts)
        self._nbytes = sum(each.nbytes for each in self.parts)
        self._host_bytes = sum(each.host_bytes for each in self.parts)
        sources = [each.codes if isinstance(each, CodedHome) else each for each in self.parts]
        self._checked = list({each.file: each for each in sources if isinstance(each, DiskHome)}.values())

    @property
    def tier(self) -> Literal["host", "disk"]:
        """The tier of its parts."""
        return self.parts[0].tier

    @property
    def nbytes(self) -> int:
        """Of the weight on the device."""
        return self._nbytes

    @property
    def host_bytes(self) -> int:
        """Bytes of its parts in the host's memory."""
        return self._host_bytes

    def cast(self, dtype: torch.dtype) -> JoinedHome | None:
        """A home that converts to another dtype in addition; None if a part is decoded in memory already."""
        parts: list[DiskHome | CodedHome] = []
        for each in self.parts:
            if not isinstance(each, MemoryHome):
                parts.append(each.cast(dtype))
        return JoinedHome(parts) if len(parts) == len(self.parts) else None

    def _placed(self, sizes: Sequence[int]) -> Iterator[tuple[DiskHome | CodedHome | MemoryHome, int, int]]:
        at = 0
        for each, size in zip(self.parts, sizes, strict=True):
            yield each, at, at + size
            at += size

    def chunks(self, target: Memory, start: int = 0) -> list[Chunk]:
        """Chunks of the parts from `start` on."""
        stop, found = start + target.nbytes, []
        for each, first, last in self._placed([each.nbytes for each in self.parts]):
            begin, end = max(first, start), min(last, stop)
            if begin < end:
                found += each.chunks(target.part(begin - start, end - start), begin - first)
        return found

    def host_chunks(self, memory: Memory) -> list[Chunk]:
        """Reads or copies of all parts."""
        places = self._placed([each.host_bytes for each in self.parts])
        return [one for each, first, last in places for one in each.host_chunks(memory.part(first, last))]

    def on_host(self, memory: Memory) -> Home:
        """A home with all parts in the host's memory."""
        if not any(isinstance(each, CodedHome) for each in self.parts):
            return MemoryHome(memory)
        places = self._placed([each.host_bytes for each in self.parts])
        return JoinedHome(
            [
                each.on_host(memory.part(first, last))
                if isinstance(each, CodedHome)
                else MemoryHome(memory.part(first, last))
                for each, first, last in places
            ]
        )

    def check(self) -> None:
        """Raise if a file has changed."""
        for each in self._checked:
            each.check()

    def release(self) -> None:
        """Nothing: files are the model's own, and memory goes with its last reference."""


def decode_on(device: Device, homes: Iterable[CodedHome | JoinedHome], threads: int) -> int:
    """Enable decoding on a device if that gives the same bits as decoding on the host.

    Returns:
        Bytes of the device that decoding takes; 0 if codes are decoded on the host.
    """
    parts = [one for each in homes for one in (each.parts if isinstance(each, JoinedHome) else [each])]
    codings = [(each.coding, each.count) for each in parts if isinstance(each, CodedHome)]
    largest = max((count for _, count in codings), default=0)
    tables: dict[torch.dtype, DeviceTable] = {}
    taken = 0
    for coding, _ in codings:
        if coding.columns % coding.block[1]:
            continue
        if coding.codes not in tables:
            tables[coding.codes] = DeviceTable(device, coding.codes, min(_PIECE, max(4096, largest // 4)))
        table = tables[coding.codes]
        taken = max(taken, max(table.piece, coding.columns) * DeviceTable.BYTES)
        coding.there = table
    tried: dict[tuple[object, ...], bool] = {}
    for coding, count in codings:
        if coding.there is None:
            continue
        key = (coding.codes, coding.columns, coding.block, coding.casts)
        if key not in tried:
            tried[key] = _same_bits(coding, coding.there, min(count // coding.columns, 4), device)
        if not tried[key]:
            coding.there = None
    return taken * threads if any(tried.values()) else 0


def _same_bits(coding: Coding, table: DeviceTable, rows: int, device: Device) -> bool:
    codes = torch.arange(rows * coding.columns, dtype=torch.int32).to(torch.uint8)
    try:
        scales = coding.blocks(0, rows).to(device.torch_device)
        found = table.decode(codes.to(device.torch_device), coding, scales, 0).cpu()
    except (RuntimeError, NotImplementedError):  # the device has no such operators
        return False
    return torch.equal(found.view(torch.uint8), coding.decode(codes, 0).view(torch.uint8))

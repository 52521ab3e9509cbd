"""Models without memory: built on meta, matched with the files of a folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from toprope.errors import WeightsError
from toprope.tiers.disk import Buffer, DiskFile
from toprope.tiers.groups import Model
from toprope.tiers.headers import Stored, read_folder
from toprope.tiers.homes import DiskHome
from toprope.tiers.memory import Memory

__all__ = ["Files", "skeleton"]

DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E8M0": torch.float8_e8m0fnu, "I16": torch.int16, "U16": torch.uint16,
    "F16": torch.float16, "BF16": torch.bfloat16, "I32": torch.int32, "U32": torch.uint32, "F32": torch.float32,
    "I64": torch.int64, "U64": torch.uint64, "F64": torch.float64, "C64": torch.complex64,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz, "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
}  # fmt: skip


@contextmanager
def skeleton() -> Iterator[None]:
    """Build models in this: their parameters take no memory (they are on meta), their buffers have their values."""
    plain = nn.Module.register_parameter

    def register(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        plain(module, name, parameter)
        if parameter is not None and parameter.device.type != "meta":
            made = module._parameters[name]
            assert made is not None
            empty = nn.Parameter(made.to("meta"), requires_grad=made.requires_grad)
            empty.__dict__.update(made.__dict__)
            module._parameters[name] = empty

    nn.Module.register_parameter = register  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = plain  # type: ignore[method-assign]


class Files:
    """The weights of a folder that belong to a model.

    Args:
        folder: with safetensors files, or one such file.
        model: the model, taken apart.

    Raises:
        WeightsError: a weight has another shape there.
    """

    def __init__(self, folder: Path, model: Model) -> None:
        self.folder = folder
        self.stored = {each.name: each for each in read_folder(folder)}
        self._open: dict[Path, DiskFile] = {}
        self.homes: dict[str, DiskHome] = {}
        for weight in model.weights.values():
            for name in weight.names:
                stored = self.find(name)
                if stored is None or stored.dtype not in DTYPES:
                    continue
                if stored.shape != tuple(weight.like.shape):
                    self.close()
                    raise WeightsError(
                        f"{name} has another shape in the files than in the model.",
                        looked_at=f"{list(stored.shape)} in {stored.file.name}, {list(weight.like.shape)} in the model",
                        do="build the model from the config.json of the same folder",
                    )
                if weight.like.is_contiguous():
                    self.homes[weight.name] = self._home(stored, weight.like.dtype)
                    break

    def find(self, name: str) -> Stored | None:
        """A tensor by the name it has in the model; files may have one prefix more or less, as those of base models."""
        if name in self.stored:
            return self.stored[name]
        short = name.partition(".")[2]
        if short in self.stored:
            return self.stored[short]
        return next(
            (self.stored[f"{each}.{name}"] for each in self._prefixes() if f"{each}.{name}" in self.stored), None
        )

    def _prefixes(self) -> list[str]:
        return list(dict.fromkeys(name.partition(".")[0] for name in self.stored))

    def _home(self, stored: Stored, dtype: torch.dtype) -> DiskHome:
        there = DTYPES[stored.dtype]
        count = stored.bytes // there.itemsize
        casts = () if there == dtype else (dtype,)
        return DiskHome(self._file(stored.file), stored.begin, there, count, casts)

    def _file(self, path: Path) -> DiskFile:
        if path not in self._open:
            self._open[path] = DiskFile(path)
        return self._open[path]

    def value(self, name: str) -> torch.Tensor | None:
        """A tensor's values; None where it is not there."""
        stored = self.find(name)
        if stored is None:
            return None
        memory = Memory.host(max(stored.bytes, 1))
        aside = Memory.host(stored.bytes + 2 * 4096)
        assert memory.address is not None
        assert aside.address is not None
        self._file(stored.file).read(
            stored.begin, stored.bytes, memory.address, Buffer(aside.address, aside.nbytes, aside)
        )
        return memory.tensor[: stored.bytes].view(DTYPES[stored.dtype]).view(stored.shape)

    def close(self) -> None:
        """Close the files."""
        for each in self._open.values():
            each.close()
        self._open.clear()


def fill_buffers(module: nn.Module, files: Files | None) -> None:
    """Give buffers on meta their values from the files.

    Raises:
        WeightsError: they are not there.
    """
    missing = []
    for prefix, owner in module.named_modules():
        for short, buffer in owner._buffers.items():
            if buffer is None or buffer.device.type != "meta":
                continue
            name = f"{prefix}.{short}" if prefix else short
            value = None if files is None else files.value(name)
            if value is None:
                missing.append(name)
            else:
                owner._buffers[short] = value.to(buffer.dtype)
    if missing:
        raise WeightsError(
            f"{len(missing)} buffers of the model have no values, and are not in the files.",
            looked_at=f"such as {missing[0]}, which is computed when the model is built",
            do="build the model in `with toprope.tiers.skeleton():`, where buffers get their values",
        )

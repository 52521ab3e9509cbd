"""Read the headers of a model folder's safetensors files, without torch: name, place, dtype and shape of each tensor.

For the planner (`plan.layout`), which must not import torch, for homes in files (`engine.model.weight_files`) and for
checkpoints. The format is another project's: eight bytes for the size of a header, the header in JSON, then the
tensors' bytes; so are the names of dtypes (`BITS`, as in `store.memory.DTYPES`). Which of several files of a folder is
loaded follows transformers and diffusers (`_loaded`). Tests: tests/tiers/test_tiers_layout.py,
tests/tiers/test_tiers_threads.py, tests/tiers/test_tiers_files.py.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from toprope.errors import WeightsError

__all__ = ["BITS", "FLOATS", "Stored", "read_folder", "read_header", "refuse_pointer"]

BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "U16": 16, "I16": 16, "F16": 16, "BF16": 16, "U32": 32, "I32": 32, "F32": 32,
    "U64": 64, "I64": 64, "F64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
"""Bits of an element, by the names of dtypes in safetensors 0.8."""

FLOATS = frozenset(("F16", "BF16", "F32", "F64"))
"""Names of dtypes whose values are complete without separate scales."""

_MOST = 100_000_000
"""Largest header in bytes that the format allows."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor in a file.

    Attributes:
        name: its name.
        file: the file.
        begin: offset of its first byte in the file.
        bytes: number of its bytes.
        dtype: its dtype in the format's names: "BF16".
        shape: its shape.
    """

    name: str
    file: Path
    begin: int
    bytes: int
    dtype: str
    shape: tuple[int, ...]


def read_folder(folder: str | os.PathLike[str]) -> tuple[Stored, ...]:
    """List all tensors of a model folder, file by file in the order of their bytes.

    The files are those of an index (`*.safetensors.index.json`), else all `*.safetensors`. If there are several next to
    a config.json, it is the one that transformers and diffusers load.

    Raises:
        WeightsError: there are no tensors, a file is damaged, or index and files do not match.
    """
    path = Path(folder)
    if path.is_file() and path.suffix == ".safetensors":
        return read_header(path)
    if not path.is_dir():
        raise WeightsError(f"{path} is no folder.", do="name the folder of a model: config.json and *.safetensors")
    indices = _loaded(path, sorted(path.glob("*.safetensors.index.json")))
    if len(indices) > 1:
        names = ", ".join(each.name for each in indices)
        raise WeightsError(f"{path} has the weights of several models.", looked_at=names, do="leave one of them there")
    found = list(_indexed(path, indices[0]) if indices else _every(path))
    if not found:
        raise WeightsError(f"{path} has no tensors.", do="name the folder of a model: config.json and *.safetensors")
    return tuple(found)


def _loaded(path: Path, files: list[Path]) -> list[Path]:
    """Choose the file that transformers and diffusers load, if several are next to a config.json."""
    if len(files) > 1 and (path / "config.json").is_file():
        names = ("model.safetensors", "diffusion_pytorch_model.safetensors")
        return [each for each in files if each.name.removesuffix(".index.json") in names][:1] or files
    return files


def refuse_pointer(file: Path) -> None:
    """Raise for a pointer that Git LFS leaves in place of a file that was not downloaded.

    Raises:
        WeightsError: it is such a pointer.
        OSError: it cannot be read.
    """
    with file.open("rb") as stream:
        text = stream.read(1024)
    if text.startswith(b"version https://git-lfs"):
        size = next((each[5:] for each in text.decode(errors="replace").splitlines() if each.startswith("size ")), "?")
        raise WeightsError(
            f"{file} is a pointer of Git LFS, and not the file itself.",
            looked_at=f"{file.stat().st_size} bytes, which stand for {size}",
            do="run `git lfs pull` in its folder, or download the file again",
        )


def _every(path: Path) -> Iterator[Stored]:
    files = _loaded(path, sorted(path.glob("*.safetensors")))
    if not files:
        others = sorted(each.name for each in path.iterdir() if each.suffix in (".bin", ".pt", ".pth", ".gguf"))
        raise WeightsError(
            f"{path} has no safetensors files.",
            looked_at=", ".join(others[:5]),
            do="save the model as safetensors: model.save_pretrained(folder)",
        )
    known: dict[str, Path] = {}
    for file in files:
        for tensor in read_header(file):
            if tensor.name in known:
                raise WeightsError(
                    f"{tensor.name} is in two files.",
                    looked_at=f"{known[tensor.name].name}, {file.name}",
                    do="leave one copy of the weights in the folder, or add the index that says which file counts",
                )
            known[tensor.name] = file
            yield tensor


def _indexed(path: Path, index: Path) -> Iterator[Stored]:
    try:
        refuse_pointer(index)
        places = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        files = {str(name): str(file) for name, file in places.items()}
    except WeightsError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(
            f"{index} is no index of safetensors files.",
            looked_at=f"{type(error).__name__}: {error}",
            do="check that it was downloaded whole",
        ) from None
    left = dict(files)
    for file in sorted(set(files.values())):
        if Path(file).name != file:
            raise WeightsError(f"{index} names a file outside of its folder.", looked_at=file, do="correct the index")
        for tensor in read_header(path / file):
            if files.get(tensor.name) == file:
                del left[tensor.name]
                yield tensor
    if left:
        name, file = next(iter(left.items()))
        raise WeightsError(
            f"{len(left)} tensors of the index are not in their files.",
            looked_at=f"such as {name} in {file}",
            do="download the files again, they belong to another version",
        )


def read_header(file: Path) -> tuple[Stored, ...]:
    """List the tensors of a file in the order of their bytes.

    Raises:
        WeightsError: it cannot be read, is no safetensors file, is cut short, or its header contradicts itself.
    """
    try:
        refuse_pointer(file)
        with file.open("rb") as stream:
            total = os.fstat(stream.fileno()).st_size
            start = stream.read(8)
            size = int.from_bytes(start, "little")
            if len(start) < 8 or size > min(total - 8, _MOST):
                raise ValueError(f"it is cut short, or of another format: {total} bytes")
            header = json.loads(stream.read(size))
        return tuple(_tensors(file, header, 8 + size, total))
    except WeightsError:
        raise
    except OSError as error:
        raise WeightsError(f"{file} cannot be read: {error.strerror}.", do="check the folder and its rights") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise WeightsError(
            f"{file} is no safetensors file, or is damaged.",
            looked_at=str(error) or type(error).__name__,
            do="check that it was downloaded whole, and that it is not a pointer of Git LFS",
        ) from None


def _tensors(file: Path, header: dict[str, Any], start: int, total: int) -> Iterator[Stored]:
    entries = [(name, each) for name, each in header.items() if name != "__metadata__"]
    at = 0
    for name, each in sorted(entries, key=lambda entry: tuple(entry[1]["data_offsets"])):
        begin, end = each["data_offsets"]
        shape = tuple(each["shape"])
        if any(type(number) is not int or number < 0 for number in (*shape, begin, end)):
            raise ValueError(f"shape or place of {name} are no whole numbers")
        if each["dtype"] not in BITS:
            raise ValueError(f"{name} has the unknown dtype {each['dtype']!r}")
        if begin != at or (end - begin) * 8 != prod(shape) * BITS[each["dtype"]]:
            raise ValueError(f"the bytes of {name} are not where and as many as they must be")
        if start + end > total:
            raise ValueError(f"it is cut short: {name} ends at byte {start + end} of {total}")
        at = end
        yield Stored(name, file, start + begin, end - begin, each["dtype"], shape)
    if start + at != total:
        raise ValueError(f"there are {total - start - at} bytes after the last tensor")

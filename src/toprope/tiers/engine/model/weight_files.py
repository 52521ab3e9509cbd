"""The weights of a model in the safetensors files of a folder, read in place; and `skeleton`, to build models on meta.

`attach` calls it for a model on meta: each weight gets a home in its file, converted or decoded from FP8 codes when it
is loaded. Files that do not match are an error, or are read by `library_loaders`. The names under which checkpoints
store scales are other projects' formats: the tables at the top. Tests: tests/tiers/test_tiers_files.py,
tests/tiers/test_tiers_codes.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import nn

from toprope.errors import WeightsError
from toprope.tiers.engine.model.library_loaders import quantization
from toprope.tiers.engine.model.model_groups import Model, Weight
from toprope.tiers.store.backing import DiskHome
from toprope.tiers.store.coded import CodedHome, Coding, JoinedHome
from toprope.tiers.store.disk_file import Buffer, DiskFile
from toprope.tiers.store.headers import FLOATS, Stored, read_folder
from toprope.tiers.store.memory import DTYPES, Memory

__all__ = ["Files", "fill_buffers", "skeleton"]


@contextmanager
def skeleton() -> Iterator[None]:
    """Context in which models are built without memory for parameters (they are on meta); buffers get their values."""
    plain = nn.Module.register_parameter

    def register(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        plain(module, name, parameter)
        if parameter is not None and parameter.device.type != "meta":
            made = module._parameters[name]
            assert made is not None
            empty = nn.Parameter(made.to("meta"), requires_grad=made.requires_grad)
            empty.__dict__.update({**made.__dict__, **empty.__dict__})
            module._parameters[name] = empty

    nn.Module.register_parameter = register  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = plain  # type: ignore[method-assign]


_COUNTS = frozenset(("I32", "I64"))
"""Integer dtypes that are no codes of weights; they hold positions, for instance."""

_SCALED = frozenset(("F8_E5M2", "F8_E4M3", "F8_E4M3FNUZ", "F8_E5M2FNUZ"))

_SCALE = "_scale_inv"
"""Ending of the names of FP8 weights' scales, by which codes are multiplied."""

_FEW = 64
"""Fewest codes for one scale: scales stay in memory as fp32, so they take at most 1/16 of the codes' bytes."""

_FLOATS = frozenset(DTYPES[each] for each in FLOATS)


class Files:
    """The weights of a folder that belong to a model.

    Names in the files are those of the model; or all of them have one prefix more or less, as in base models.

    Args:
        folder: a folder with safetensors files, or one such file.
        model: the model's weights.
        module: the model.
        stored: the tensors of files in another format: they are compared with the model, and not read.

    Raises:
        WeightsError: a file is damaged, or there is none.
    """

    def __init__(self, folder: Path, model: Model, module: nn.Module, stored: Iterable[Stored] | None = None) -> None:
        self.folder, self.model, self.module = folder, model, module
        self.stored = {each.name: each for each in (read_folder(folder) if stored is None else stored)}
        self._open: dict[Path, DiskFile] = {}
        self.homes: dict[str, DiskHome | CodedHome | JoinedHome] = {}
        self.refused: list[str] = []
        """Weights that are stored in a form that cannot be converted to the model's dtype."""
        self._reshaped: list[tuple[str, Stored, Weight]] = []
        self._used: set[str] = set()
        """Tensors of the files that are used under another name, or belong to another tensor, such as scales."""
        self._renamed: dict[str, str] = {}
        self._stored_name, self._part = self._names()
        self._quantization = quantization(folder)
        self._scaled = (self._quantization or {}).get("quant_method") == "fp8"
        if stored is None:  # in other formats nothing is read in place
            self._find_codes()
        for weight in model.weights.values():
            for name in weight.names:
                found = self.find(name)
                if found is None or found.dtype not in DTYPES or weight.name in self.homes:
                    continue
                there, wanted = DTYPES[found.dtype], weight.like.dtype
                if there != wanted and not self._can_be_rounded(found.dtype, wanted):
                    self.refused.append(f"{name}: {there} in {found.file.name}, {wanted} in the model")
                    break
                if found.shape != tuple(weight.like.shape):
                    self._reshaped.append((name, found, weight))
                    break
                if weight.like.is_contiguous():
                    self.homes[weight.name] = self._home(found, wanted)
                    break

    def _find_codes(self) -> None:
        """Find weights whose codes and scales are stored under the model's names."""
        for weight in self.model.weights.values():
            for name in weight.names:
                found = self.find(name)
                if found is None or found.shape != tuple(weight.like.shape) or not weight.like.is_contiguous():
                    continue
                home = self._coded(found, weight.like.dtype)
                if home is not None:
                    self.homes[weight.name] = home
                    break

    def _coded(self, stored: Stored, dtype: torch.dtype) -> CodedHome | None:
        """The home of a weight stored as 8-bit codes with scales for blocks; None if it is stored otherwise."""
        scales = self.stored.get(f"{stored.name}{_SCALE}")
        if not self._scaled or stored.dtype not in _SCALED or scales is None or len(stored.shape) < 2:
            return None
        rows, columns = stored.shape[-2:]
        matrices = prod(stored.shape[:-2])
        grid = scales.shape[-2:] if len(scales.shape) >= 2 else (1, 1)
        block = self._block_shape((rows, columns), grid)
        factors = prod(scales.shape)
        plain = scales.dtype in FLOATS or scales.dtype in ("U8", "F8_E8M0")
        if block is None or not plain or dtype not in _FLOATS or factors != matrices * prod(grid):
            return None
        if rows % block[0] and matrices > 1:
            return None
        if factors * _FEW > prod(stored.shape):  # scales stay in memory, and these would be too large
            return None
        values = self._values(scales)
        values = (values.to(torch.float32) - 127).exp2() if scales.dtype == "U8" else values.to(torch.float32)
        table = values.reshape(-1, grid[1]).clone()  # not in a memory mapping of its own: their number is limited
        coding = Coding(DTYPES[stored.dtype], columns, table, block, (dtype,))
        self._used |= {scales.name, f"{stored.name.removesuffix('weight')}activation_scale"}
        count = prod(stored.shape)
        return CodedHome(DiskHome(self._file(stored.file), stored.begin, torch.uint8, count), coding)

    def _without_scales(self) -> list[Stored]:
        """Codes without a scale under any of the names that such checkpoints use."""
        return [
            each
            for name, each in self.stored.items()
            if each.dtype in _SCALED
            and not name.endswith("scale_inv")
            and not any(other in self.stored for other in _scales_of(name))
        ]

    def _block_shape(self, shape: tuple[int, ...], grid: tuple[int, ...]) -> tuple[int, int] | None:
        """Rows and columns of a block with one scale: from the configuration, else from the number of scales."""
        said: Any = (self._quantization or {}).get("weight_block_size")
        blocks = isinstance(said, list) and len(said) == 2 and all(type(each) is int and each > 0 for each in said)
        if blocks and all(-(-size // each) == count for size, each, count in zip(shape, said, grid, strict=True)):
            return said[0], said[1]
        if any(not count or size % count for size, count in zip(shape, grid, strict=True)):
            return None
        return shape[0] // grid[0], shape[1] // grid[1]

    def take_layouts(self, layouts: Mapping[str, Sequence[str]] | None) -> bool:
        """Take weights from tensors with other names, or from several: fused experts.

        Args:
            layouts: by the name of a tensor of the model, the names of the files' tensors that it consists of.

        Returns:
            True if the whole model was found.
        """
        if not layouts:
            return False
        renamed = {name: sources[0] for name, sources in layouts.items() if len(sources) == 1}
        known = {name for weight in self.model.weights.values() for name in weight.names}
        self._renamed = {name: source for name, source in renamed.items() if name not in known}
        self._used |= set(self._renamed.values())
        self.refused, self._reshaped = [], []
        for weight in self.model.weights.values():
            sources = next((layouts[name] for name in weight.names if name in layouts), None)
            if sources is None:
                continue
            some = [self.stored[each] for each in sources if each in self.stored]
            shapes = {each.shape[-1:] for each in some}
            if sum(prod(each.shape) for each in some) != weight.like.numel() or not weight.like.is_contiguous():
                return False
            if shapes != {tuple(weight.like.shape[-1:])} or (len(some) == 1 and some[0].shape != weight.like.shape):
                return False
            homes = [self._coded(each, weight.like.dtype) or self._plain(each, weight.like.dtype) for each in some]
            parts = [each for each in homes if each is not None]
            if len(parts) < len(sources):
                return False
            self.homes[weight.name] = parts[0] if len(parts) == 1 else JoinedHome(parts)
            self._used |= set(sources)
        try:
            self.check(whole=True)
        except WeightsError:
            return False
        return True

    def _plain(self, stored: Stored, dtype: torch.dtype) -> DiskHome | None:
        there = DTYPES.get(stored.dtype)
        if there is None or (there != dtype and not self._can_be_rounded(stored.dtype, dtype)):
            return None
        return self._home(stored, dtype)

    def find(self, name: str) -> Stored | None:
        """A tensor by the name it has in the model."""
        return self.stored.get(self._renamed.get(name) or self._stored_name(name))

    def _names(self) -> tuple[Callable[[str], str], str]:
        """Find the rule from the model's names to the files' names, and the prefix of the model's part of the files.

        It is one rule for all weights: the one that finds most of them, and none twice.
        """

        def shorter(prefix: str) -> Callable[[str], str]:
            return lambda name: name.removeprefix(prefix)

        def longer(prefix: str) -> Callable[[str], str]:
            return lambda name: prefix + name

        names = [name for weight in self.model.weights.values() for name in weight.names]
        firsts = dict.fromkeys(name.partition(".")[0] + "." for name in names if "." in name)
        rules: list[tuple[Callable[[str], str], str]] = [(lambda name: name, "")]
        rules += [(shorter(each), "") for each in firsts]
        ends = [f".{name}" for name in names[:3]]
        more = dict.fromkeys(each[: 1 - len(end)] for each in self.stored for end in ends if each.endswith(end))
        rules += [(longer(each), each) for each in more]
        best, most = rules[0], -1
        for rule, part in rules:
            found = [
                each
                for weight in self.model.weights.values()
                if (each := next((rule(name) for name in weight.names if rule(name) in self.stored), None)) is not None
            ]
            if len(found) > most and len(set(found)) == len(found):
                best, most = (rule, part), len(found)
        return best

    def check(self, *, whole: bool) -> None:
        """Raise if the files do not match the model; only the headers of the files are read.

        Args:
            whole: the model has no values of its own: it needs all its tensors, and every tensor has to belong to it.

        Raises:
            WeightsError: a tensor has another shape, is missing, is unknown to the model, or cannot be converted.
        """
        for name, stored, weight in self._reshaped:
            raise WeightsError(
                f"{name} has another shape in the files than in the model.",
                looked_at=f"{list(stored.shape)} in {stored.file.name}, {list(weight.like.shape)} in the model",
                do="build the model from the config.json of the same folder",
            )
        if not whole:
            return
        unused = self._unused()
        missing = [
            weight.name
            for weight in self.model.weights.values()
            if weight.parameters[0].is_meta and weight.name not in self.homes
        ]
        missing += [name for name in persistent_buffers(self.module) if self.find(name) is None]
        if not (self.refused or missing or unused):
            return
        facts = [
            f"{len(some)} {what}, such as {some[0]}"
            for what, some in (
                ("weights of the model are not in the files, or have no values there", missing),
                ("tensors of the files are of no use to the model", unused),
                ("are stored in a form that cannot be converted", self.refused),
            )
            if some
        ]
        weights = len(self.model.weights)
        facts.append(f"{len(self.stored)} tensors in the files, {weights} weights in the model")
        if self.refused or any("scale" in each for each in unused):
            do = "dequantise the files; or build the model with the library that wrote them, and attach it in memory"
        else:
            do = "build the model from the config.json of the same folder; name one file: disk=folder/model.safetensors"
        raise WeightsError(f"{self.folder} does not hold this model.", looked_at="; ".join(facts), do=do)

    def _unused(self) -> list[str]:
        """Tensors in the model's part of the files whose name the model does not have."""
        known = {self._stored_name(name) for weight in self.model.weights.values() for name in weight.names}
        known |= {self._stored_name(name) for name in self.model.left}
        known |= {self._stored_name(name) for name, _ in self.module.named_buffers()}
        ignored = self._patterns("_keys_to_ignore_on_load_unexpected")
        return [
            name
            for name in self.stored
            if name not in known
            and name not in self._used
            and name.startswith(self._part)
            and not name.endswith("_extra_state")
            and not _any_matches(ignored, name)
        ]

    def _patterns(self, attribute: str) -> list[re.Pattern[str]]:
        return [re.compile(each) for module in self.module.modules() for each in getattr(module, attribute, None) or ()]

    def may_be_converted(self) -> bool:
        """True if the model's library may be able to convert these files, for which `check` raises.

        The library renames, fuses, splits and transposes tensors, which keeps the number of their elements. So if the
        missing and the unknown tensors have the same number of elements, a conversion is possible; else it is not, and
        the files need not be read to know that.
        """
        scaled = self._scaled
        if self._quantization is not None and not scaled:
            return True  # the library's loader names the method
        if scaled and (alone := self._without_scales()):
            self.refused = [f"{each.name}: {each.dtype} without a scale in {each.file.name}" for each in alone]
            return False
        if (self.refused and not scaled) or any(
            prod(there.shape) != weight.like.numel() for _, there, weight in self._reshaped
        ):
            return False
        ignored = self._patterns("_keys_to_ignore_on_load_missing")
        weights = [
            weight
            for weight in self.model.weights.values()
            if not any(self.find(name) is not None or _any_matches(ignored, name) for name in weight.names)
        ]
        buffers = [
            self.module.get_buffer(name)
            for name in persistent_buffers(self.module)
            if self.find(name) is None and not _any_matches(ignored, name)
        ]
        unused = [self.stored[name] for name in self._unused() if not (scaled and "scale" in name)]
        codes = [each for each in unused if each.dtype not in FLOATS | _SCALED | _COUNTS]
        if codes and all(each.like.is_floating_point() for each in weights):
            self.refused += [f"{each.name}: {each.dtype} in {each.file.name}" for each in codes]
            return False
        missing = sum(each.like.numel() for each in weights) + sum(each.numel() for each in buffers)
        twice = sum((len(each.names) - 1) * each.like.numel() for each in weights)  # tied, and stored under each name
        return missing <= sum(prod(each.shape) for each in unused) <= missing + twice

    def _can_be_rounded(self, stored: str, dtype: torch.dtype) -> bool:
        """True if stored values can be rounded to a dtype; False for codes with separate scales."""
        return dtype in _FLOATS and (stored in FLOATS or (stored in _SCALED and self._quantization is None))

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
        """Read a tensor's values; None if it is not in the files."""
        stored = self.find(name)
        return None if stored is None else self._values(stored)

    def _values(self, stored: Stored) -> torch.Tensor:
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


def _scales_of(name: str) -> tuple[str, ...]:
    stem = name.removesuffix(".weight")
    return f"{name}{_SCALE}", f"{stem}.scale", f"{stem}.qscale_weight"


def _any_matches(patterns: list[re.Pattern[str]], name: str) -> bool:
    return any(each.search(name) for each in patterns)


def persistent_buffers(module: nn.Module) -> list[str]:
    """Names of the buffers in a model's state, without counters of batches, which old files may lack."""
    return [
        f"{prefix}.{short}" if prefix else short
        for prefix, owner in module.named_modules()
        for short, buffer in owner._buffers.items()
        if buffer is not None and short not in owner._non_persistent_buffers_set and short != "num_batches_tracked"
    ]


def fill_buffers(module: nn.Module, values: Callable[[str], torch.Tensor | None], *, all_of_them: bool) -> None:
    """Give buffers their values from the files.

    Args:
        module: the model.
        values: function from a buffer's name to its values; None if the files have none.
        all_of_them: fill all buffers, as the model gets its values from the files; else only those on meta.

    Raises:
        WeightsError: the files have no values for a buffer on meta.
    """
    missing = []
    for prefix, owner in module.named_modules():
        for short, buffer in owner._buffers.items():
            if buffer is None or not (
                buffer.is_meta or (all_of_them and short not in owner._non_persistent_buffers_set)
            ):
                continue
            name = f"{prefix}.{short}" if prefix else short
            value = values(name)
            if value is not None:
                if value.shape != buffer.shape or value.is_floating_point() != buffer.is_floating_point():
                    raise WeightsError(
                        f"the buffer {name} is another one in the files than in the model.",
                        looked_at=f"{value.dtype} {list(value.shape)}; {buffer.dtype} {list(buffer.shape)}",
                        do="build the model from the config.json of the same folder",
                    )
                owner._buffers[short] = value.to(buffer.dtype)
            elif buffer.is_meta:
                missing.append(name)
    if missing:
        raise WeightsError(
            f"{len(missing)} buffers of the model have no values, and are not in the files.",
            looked_at=f"such as {missing[0]}, which is computed when the model is built",
            do="build the model in `with toprope.tiers.skeleton():`, where buffers get their values",
        )

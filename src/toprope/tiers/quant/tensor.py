"""A quantised tensor: codes, scales, and a header that describes them.

The type that all of `tiers.quant` passes around. `state_dict` and the header are a file format, with a version
(`_VERSION`): files of another version are refused, and a change of the format needs a new number. The order of the
codes in a byte is the one that csrc/pages.h describes. Tests: tests/tiers/test_pages_formats.py.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from toprope.errors import PageError
from toprope.tiers.quant.formats import Format, format_named

__all__ = ["QuantisedTensor"]

_NIBBLES = "low first"
_VERSION = 1
_DTYPES = {str(each).removeprefix("torch."): each for each in (
    torch.float32, torch.bfloat16, torch.float16, torch.float64)}  # fmt: skip


@dataclass(frozen=True, eq=False)
class QuantisedTensor:
    """A tensor in 4 or 8 bits per value.

    Attributes:
        format: its format.
        shape: shape of the tensor.
        dtype: dtype of the tensor before quantisation, and default of `decode`.
        codes: uint8 tensor; for 4 bits ceil(n / 2) bytes without gaps between rows, the first of two codes in the low
            half of a byte; for int8 n bytes.
        scales: bytes of the scales, row by row, ceil(columns / block) per row.
        global_scale: bytes of one fp32 number that multiplies every scale; None if the format has none.
    """

    format: Format
    shape: tuple[int, ...]
    dtype: torch.dtype
    codes: torch.Tensor
    scales: torch.Tensor
    global_scale: torch.Tensor | None = None

    def __post_init__(self) -> None:
        codes = -(-self.numel() // 2) if self.format.bits == 4 else self.numel()
        scales = self.rows * self.format.blocks(self.columns) * self.format.scale_dtype.itemsize
        wanted = {"codes": codes, "scales": scales, "global_scale": 4 if self.format.has_global else 0}
        for name, count in wanted.items():
            tensor = getattr(self, name)
            found = 0 if tensor is None else tensor.numel()
            if found != count or (tensor is not None and tensor.dtype != torch.uint8):
                raise PageError(
                    f"a page's {name} do not fit its header.",
                    f"{self.format.name} of shape {list(self.shape)} takes {count} bytes of uint8, these are {found}"
                    + ("" if tensor is None else f" of {tensor.dtype}"),
                )

    @property
    def columns(self) -> int:
        """The last dimension, along which blocks lie."""
        return self.shape[-1] if self.shape else 1

    @property
    def rows(self) -> int:
        """The product of the other dimensions."""
        return math.prod(self.shape[:-1])

    def numel(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales."""
        return self.codes.nbytes + self.scales.nbytes + (0 if self.global_scale is None else self.global_scale.nbytes)

    @property
    def device(self) -> torch.device:
        """The device of its tensors."""
        return self.codes.device

    def typed_scales(self) -> torch.Tensor:
        """The scales in their own dtype, `rows` x blocks, without the global scale."""
        return self.scales.view(self.format.scale_dtype).view(self.rows, self.format.blocks(self.columns))

    def to(self, device: torch.device | str) -> QuantisedTensor:
        """Copy it to another device."""
        moved = None if self.global_scale is None else self.global_scale.to(device)
        return QuantisedTensor(
            self.format, self.shape, self.dtype, self.codes.to(device), self.scales.to(device), moved
        )

    def header(self) -> torch.Tensor:
        """Description of the bytes, as JSON in a uint8 tensor: format, shape, dtype and order of half-bytes."""
        facts = {
            "version": _VERSION,
            "format": self.format.name,
            "shape": list(self.shape),
            "dtype": str(self.dtype).removeprefix("torch."),
            "nibbles": _NIBBLES,
        }
        return torch.tensor(list(json.dumps(facts).encode()), dtype=torch.uint8)

    def state_dict(self, prefix: str = "") -> dict[str, torch.Tensor]:
        """uint8 tensors that torch.save and safetensors can store, with names that begin with `prefix`."""
        state = {"header": self.header(), "codes": self.codes, "scales": self.scales}
        if self.global_scale is not None:
            state["global_scale"] = self.global_scale
        return {prefix + name: tensor for name, tensor in state.items()}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, torch.Tensor], prefix: str = "") -> QuantisedTensor:
        """Restore a tensor from its `state_dict`.

        Raises:
            PageError: a part is missing or does not fit the header, or the header cannot be read.
        """
        names = ("header", "codes", "scales")
        missing = [prefix + name for name in names if prefix + name not in state]
        if missing:
            raise PageError(
                f"a page lacks {', '.join(missing)}.", f"{len(state)} names", "give the prefix it was kept under"
            )
        header, codes, scales = (state[prefix + name] for name in names)
        form, shape, dtype = read_header(header)
        return cls(form, shape, dtype, codes, scales, state.get(f"{prefix}global_scale"))


def read_header(header: torch.Tensor) -> tuple[Format, tuple[int, ...], torch.dtype]:
    """Read format, shape and dtype from a header.

    Raises:
        PageError: it cannot be read, or its version or order of half-bytes is unknown.
    """
    try:
        facts = json.loads(bytes(header.tolist()))
        known = facts["version"] == _VERSION and facts["nibbles"] == _NIBBLES
        shape = tuple(int(each) for each in facts["shape"])
        dtype, name = _DTYPES[facts["dtype"]], str(facts["format"])
    except (ValueError, KeyError, TypeError) as error:
        raise PageError("the header of a page cannot be read.", f"{type(error).__name__}: {error}") from error
    if not known or min(shape, default=0) < 0:
        raise PageError(
            "a page is stored in a way that is not known here.",
            f"version {facts['version']}, half-bytes {facts['nibbles']}, shape {facts['shape']}",
            f"known are version {_VERSION} and half-bytes {_NIBBLES}",
        )
    return format_named(name), shape, dtype

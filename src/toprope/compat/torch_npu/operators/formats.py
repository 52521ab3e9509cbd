"""Storage formats of the card: their numbers, kept with the storage of a tensor. Values lie as torch lays them.

Part of the torch_npu facade: programs call these operators as `torch_npu.NAME`. registry.py finds the lines
`@operator(...)` as text, and imports this file at the first call. Names and parameters follow
support/npu_operators.toml; numbers, rules, refusals and the key in files are the vendor's. Tests:
tests/compat/test_torch_npu_formats.py.

On a card a format such as FRACTAL_NZ changes where values lie in memory. The simulated card has no such layouts: a cast
notes the number of the format at the tensor's storage, the values stay, and so does the size. Operators give tensors of
the base format, and a compiled graph keeps no format. copy.deepcopy and torch.save keep it.

Source of the rules: FormatHelper.cpp, InferFormat.cpp, FormatCastKernelNpu.cpp and, for files, NPUSerialization.cpp of
Ascend/pytorch, of which the path for a CANN before 9.1 is taken, since the simulated card tells no version of CANN.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import torch

from .._error_codes import ErrCode, ops_error
from .checks import refuse
from .registry import operator

__all__ = [
    "Format",
    "base_format",
    "check_on_card",
    "empty_with_format",
    "format_of",
    "get_npu_format",
    "keep_formats",
    "named_format",
    "npu_format_cast",
    "npu_format_cast_",
    "npu_format_cast_as",
    "npu_format_cast_as_",
    "share_format",
]

_FIRST_ACLNN_ONLY = 260
"""SocVersion of the Ascend 950, which takes FRACTAL_NZ also where internal formats are not allowed."""


class Format(IntEnum):
    """Storage formats, as acl_base.h numbers them."""

    UNDEFINED = -1
    NCHW = 0
    NHWC = 1
    ND = 2
    NC1HWC0 = 3
    FRACTAL_Z = 4
    NC1HWC0_C04 = 12
    HWCN = 16
    NDHWC = 27
    FRACTAL_NZ = 29
    NCDHW = 30
    NDC1HWC0 = 32
    FRACTAL_Z_3D = 33
    NC = 35
    NCL = 47
    FRACTAL_NZ_C0_16 = 50
    FRACTAL_NZ_C0_32 = 51
    FRACTAL_NZ_C0_2 = 52
    FRACTAL_NZ_C0_4 = 53
    FRACTAL_NZ_C0_8 = 54

    def __str__(self) -> str:
        return self.name


_BASE = {
    Format.NCHW: Format.NCHW,
    Format.NHWC: Format.NHWC,
    Format.ND: Format.ND,
    Format.NC1HWC0: Format.NCHW,
    Format.FRACTAL_Z: Format.NCHW,
    Format.NDHWC: Format.NCDHW,
    Format.FRACTAL_NZ: Format.ND,
    Format.NCDHW: Format.NCDHW,
    Format.NDC1HWC0: Format.NCDHW,
    Format.FRACTAL_Z_3D: Format.NCDHW,
    Format.FRACTAL_NZ_C0_16: Format.ND,
    Format.FRACTAL_NZ_C0_32: Format.ND,
    Format.FRACTAL_NZ_C0_2: Format.ND,
    Format.FRACTAL_NZ_C0_4: Format.ND,
    Format.FRACTAL_NZ_C0_8: Format.ND,
}
"""Formats that tensors can have, each with the one in which its values lie as torch lays them."""

_NOTED, _FORMAT_KEY = "_npu_format", "npu_format_"
"""Attribute of a storage that has the number of its format; the same in the metadata of a file."""

_warned: set[str] = set()


def check_on_card(tensor: torch.Tensor) -> None:
    """Refuse a tensor that is not on the card.

    Raises:
        RuntimeError: it is on another device.
    """
    if tensor.device.type != "npu":
        raise RuntimeError(f"Expected a tensor on the NPU, but it is on {tensor.device}." + ops_error(ErrCode.PARAM))


def base_format(number: int) -> int:
    """Format in which values of a format lie as torch lays them; a number that no tensor can have stays."""
    base = {int(each): int(base) for each, base in _BASE.items()}
    return base.get(number, number)


def format_of(tensor: torch.Tensor) -> Format:
    """Format of a tensor's storage: the one it was cast to, else the one of its number of dimensions."""
    kept = getattr(tensor.untyped_storage(), _NOTED, None) if _has_storage(tensor) else None
    return Format(kept) if kept is not None else _of_dims(_whole(tensor).dim())


def share_format(tensor: torch.Tensor, source: torch.Tensor) -> None:
    """Note for a tensor's storage the format of another tensor."""
    _note(tensor, format_of(source))


def keep_formats() -> None:
    """Let copy.deepcopy and torch.save keep the format of a storage.

    A file has what torch_npu writes: keys such as "npu_format_/FRACTAL_NZ", of which torch itself takes no notice.
    """
    deepcopy: Any = torch.UntypedStorage.__deepcopy__
    get_metadata: Any = torch._utils.get_tensor_metadata
    set_metadata: Any = torch._utils.set_tensor_metadata
    if hasattr(deepcopy, "keeps_format"):
        return

    def copy_with_format(self: torch.UntypedStorage, memo: dict[Any, Any]) -> Any:
        made = deepcopy(self, memo)
        if (kept := getattr(self, _NOTED, None)) is not None:
            setattr(made, _NOTED, kept)
        return made

    def get_with_format(tensor: torch.Tensor) -> dict[str, bool]:
        found: dict[str, bool] = get_metadata(tensor)
        return found | _described(tensor)

    def set_with_format(tensor: torch.Tensor, metadata: dict[str, bool]) -> None:
        set_metadata(tensor, metadata)
        for key in metadata:
            start, _, name = key.partition("/")
            if start == _FORMAT_KEY and name in Format.__members__ and _has_storage(tensor):
                _note(tensor, _granted(_whole(tensor).shape, Format[name]))

    copy_with_format.keeps_format = True  # type: ignore[attr-defined]
    torch.UntypedStorage.__deepcopy__ = copy_with_format  # type: ignore[method-assign, assignment]
    torch._utils.get_tensor_metadata = get_with_format
    torch._utils.set_tensor_metadata = set_with_format


@operator("get_npu_format", composite=True)
def get_npu_format(self: torch.Tensor) -> int:
    """Number of the storage format.

    Args:
        self: a tensor on the card.

    Raises:
        RuntimeError: it is on another device.
    """
    check_on_card(self)
    return int(format_of(self))


def named_format(self: torch.Tensor) -> Format:
    """Storage format of a tensor: `torch_npu.get_npu_format`.

    Args:
        self: a tensor on the card.

    Raises:
        RuntimeError: it is on another device.
    """
    return Format(torch.ops.npu.get_npu_format(self))


@operator("npu_format_cast", composite=True)
def npu_format_cast(
    self: torch.Tensor, acl_format: int, *, customize_dtype: int | None = None, input_dtype: int | None = None
) -> torch.Tensor:
    """The tensor in another storage format: itself, or a copy where one of the two formats is the card's own.

    Between formats of torch's layout the number of the tensor itself changes, as on a card. A format of the card's
    own takes `torch.npu.config.allow_internal_format = True`, else the result has the base format.

    Args:
        self: any tensor; off the card, and while torch.compile traces, it stays as it is.
        acl_format: number of the format, such as 29 for FRACTAL_NZ.
        customize_dtype: a CANN before 9.1 does not take it.
        input_dtype: as `customize_dtype`.

    Raises:
        RuntimeError: a format that tensors cannot have, or an argument that is not taken.
    """
    wanted = _checked("npu_format_cast", acl_format, customize_dtype, input_dtype)
    if not _has_storage(self) or wanted == (current := format_of(self)):
        return self
    if _is_base(current) and _is_base(wanted):
        _note(self, wanted)
        return self
    result = self.clone()
    _note(result, _granted(_whole(self).shape, wanted))
    return result


@operator("npu_format_cast_.acl_format", composite=True)
def npu_format_cast_(
    self: torch.Tensor, acl_format: int, *, customize_dtype: int | None = None, input_dtype: int | None = None
) -> torch.Tensor:
    """Give the tensor's storage another format. The arguments and errors are those of `npu_format_cast`."""
    wanted = _checked("npu_format_cast_", acl_format, customize_dtype, input_dtype)
    if _has_storage(self) and wanted != (current := format_of(self)):
        both = _is_base(current) and _is_base(wanted)
        _note(self, wanted if both else _granted(_whole(self).shape, wanted))
    return self


@operator("npu_format_cast.Tensor", composite=True)
def npu_format_cast_as(
    self: torch.Tensor, dst: torch.Tensor, *, customize_dtype: int | None = None, input_dtype: int | None = None
) -> torch.Tensor:
    """`npu_format_cast` to the format of another tensor."""
    check_on_card(dst)
    return npu_format_cast(self, format_of(dst), customize_dtype=customize_dtype, input_dtype=input_dtype)


@operator("npu_format_cast_", composite=True)
def npu_format_cast_as_(
    self: torch.Tensor, src: torch.Tensor, *, customize_dtype: int | None = None, input_dtype: int | None = None
) -> torch.Tensor:
    """Copy a tensor's values into this one, which keeps its format."""
    check_on_card(self)
    check_on_card(src)
    return self.copy_(src)


@operator("empty_with_format", composite=True)
def empty_with_format(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    acl_format: int = 2,
    base_addr_aligned_kb: int | None = None,
) -> torch.Tensor:
    """New tensor on the card, of a storage format.

    Args:
        size: its shape.
        dtype: None for torch's default.
        layout: torch.strided.
        device: a card.
        pin_memory: not for a tensor on a card.
        acl_format: number of the format. One that does not fit the number of dimensions becomes ND or NCHW.
        base_addr_aligned_kb: alignment of the address on a card; addresses here are not those of a card.

    Raises:
        RuntimeError: the device is no card, the memory is to be pinned, or there is no such format.
    """
    wanted = _checked("empty_with_format", acl_format, None, None)
    if device is None or torch.device(device).type != "npu":
        raise RuntimeError(f"empty_with_format makes tensors on the NPU, not on {device}." + ops_error(ErrCode.PARAM))
    if pin_memory:
        raise RuntimeError("Only dense CPU tensors can be pinned" + ops_error(ErrCode.TYPE))
    tensor = torch.empty(size, dtype=dtype, layout=layout or torch.strided, device=device)
    if _has_storage(tensor):
        _note(tensor, _fitting(size, wanted))
    return tensor


def _checked(operator: str, number: int, customize_dtype: int | None, input_dtype: int | None) -> Format:
    if number not in _BASE:
        refuse(operator, f"there is no storage format {number}")
    if customize_dtype is not None or input_dtype is not None:
        refuse(operator, "customize_dtype and input_dtype take CANN 9.1, and the simulated card tells no version")
    return Format(number)


def _has_storage(tensor: torch.Tensor) -> bool:
    # not while a compiler traces, whose tensors are subclasses
    return tensor.device.type == "npu" and type(tensor) in (torch.Tensor, torch.nn.Parameter)


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor._base is None else tensor._base


def _note(tensor: torch.Tensor, wanted: Format) -> None:
    # torch keeps the Python object of a storage, with its attributes, as long as the storage
    setattr(tensor.untyped_storage(), _NOTED, int(wanted))


def _described(tensor: torch.Tensor) -> dict[str, bool]:
    """Metadata of a tensor whose format was noted, as torch_npu's file has it: all is in the keys."""
    if not _has_storage(tensor) or not hasattr(tensor.untyped_storage(), _NOTED):
        return {}
    whole = _whole(tensor)
    numbers = {"base_sizes_": whole.shape, "base_strides_": whole.stride(), "storage_sizes_": whole.shape}
    found = format_of(tensor)
    names = {"origin_format_": _BASE[found], _FORMAT_KEY: found}
    keys = [f"{key}/{''.join(f'{number}/' for number in value)}" for key, value in numbers.items()]
    return dict.fromkeys(keys + [f"{key}/{name}" for key, name in names.items()], True)


def _of_dims(count: int) -> Format:
    return {4: Format.NCHW, 5: Format.NCDHW}.get(count, Format.ND)


def _is_base(number: Format) -> bool:
    return _BASE[number] is number


def _granted(shape: Sequence[int], wanted: Format) -> Format:
    """Format that a new tensor gets where this one is asked for."""
    from toprope.sim.npu._state import chip
    from toprope.sim.npu.npu_config import internal_format_is_allowed

    fitting = _fitting(shape, wanted)
    if _is_base(fitting) or internal_format_is_allowed():
        return fitting
    base = _BASE[fitting]
    if (chip().soc_version or 0) >= _FIRST_ACLNN_ONLY and base is Format.ND:
        return fitting
    _warn_once(f"torch.npu.config.allow_internal_format is False: a tensor gets the base format of {fitting.name}.")
    return _fitting(shape, base)


def _fitting(shape: Sequence[int], wanted: Format) -> Format:
    dims = len(shape)
    if wanted is Format.FRACTAL_NZ and dims < 2:
        _warn_once("A tensor of fewer than 2 dimensions cannot have the format FRACTAL_NZ: it gets ND.")
        return Format.ND
    if wanted is Format.NCDHW:
        return _of_dims(dims)
    if wanted is Format.NCHW and dims != 4:
        return Format.ND
    if dims == 0 or (tuple(shape) == (1,) and _BASE[wanted] is Format.ND):
        return Format.ND
    return wanted


def _warn_once(text: str) -> None:
    if text not in _warned:
        _warned.add(text)
        warnings.warn(text, stacklevel=2)

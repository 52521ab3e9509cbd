"""toprope's stand-in for torch_npu: `torch.npu`, and those operators that can be composed of torch's own.

It is importable as `torch_npu` where toprope's finder serves it. What is not here raises AttributeError with the name
of the API that is missing; nothing is a stub.
"""

from typing import Any

import torch

from toprope.compat.missing import missing_from
from toprope.sim import _autoload

from . import _C, contrib, distributed, dynamo, optim, profiler, utils
from ._door import alias_npu, current_npu, needs_import, transfer_is_wanted
from ._format import Format, named_format
from ._operators import OPERATORS, register
from .version import __version__

_autoload()
register()
alias_npu(__name__)

copy_memory_ = torch.ops.npu.copy_memory_
empty_with_format = torch.ops.npu.empty_with_format
get_npu_format = named_format
get_storage_size = torch.ops.npu.get_storage_size
npu_add_rms_norm = torch.ops.npu.npu_add_rms_norm
npu_change_data_ptr = torch.ops.npu.npu_change_data_ptr
npu_dtype_cast = torch.ops.npu.npu_dtype_cast
npu_fast_gelu = torch.ops.npu.npu_fast_gelu
npu_format_cast = torch.ops.npu.npu_format_cast
npu_format_cast_ = torch.ops.npu.npu_format_cast_
npu_fusion_attention = torch.ops.npu.npu_fusion_attention
npu_geglu = torch.ops.npu.npu_geglu
npu_gelu = torch.ops.npu.npu_gelu
npu_rms_norm = torch.ops.npu.npu_rms_norm
npu_rotary_mul = torch.ops.npu.npu_rotary_mul
npu_silu = torch.ops.npu.npu_silu
npu_swiglu = torch.ops.npu.npu_swiglu

__all__ = [
    "Format",
    "_C",
    "__version__",
    "contrib",
    "distributed",
    "dynamo",
    "npu",
    "optim",
    "profiler",
    "utils",
    *OPERATORS,
]

_missing = missing_from(__name__)


def __getattr__(name: str) -> Any:
    if name == "npu":
        return current_npu()  # asked each time: a card may be installed later
    needs_import(__name__, name)
    return _missing(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if transfer_is_wanted():
    from .contrib import transfer_to_npu  # noqa: F401

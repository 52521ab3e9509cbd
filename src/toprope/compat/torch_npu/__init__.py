"""Facade of torch_npu: `torch.npu`, and those operators that can be composed of torch's own.

Programs import it as `torch_npu` (toprope.compat.finder serves it). Names are torch_npu's. The order of the calls
matters: the card, then the operators, then what extends torch. What is not here raises AttributeError with the name of
the API that is missing; nothing is a stub. Tests: tests/compat/test_torch_npu_facade.py,
tests/compat/test_vendor_names.py.
"""

from typing import Any

import torch

from toprope.compat.missing import missing_from
from toprope.sim import _autoload

from . import _C, atb, contrib, distributed, dynamo, optim, profiler, utils
from ._facade import alias_npu, current_npu, needs_import, transfer_is_wanted
from .dtype_numbers import EXPORTED as _DTYPES
from .operators import OPERATORS, described, register
from .operators.checksum import matmul_checksum
from .operators.formats import Format, keep_formats, named_format
from .operators.graph_tensors import print_npugraph_tensor, register_graph_tensors, save_npugraph_tensor
from .operators.storage import erase_stream
from .version import __version__

_autoload()
register()
keep_formats()
register_graph_tensors()
distributed.extend_when_imported()
alias_npu(__name__)

_EXPORTED = {
    name: getattr(getattr(torch.ops, made.namespace), name)
    for name, made in ((full.partition(".")[0], made) for full, made in OPERATORS.items())
}
for _name, _packet in _EXPORTED.items():
    _packet.__doc__ = described(_name)
globals().update(_DTYPES)  # torch_npu.hifloat8 and the others are numbers
globals().update(_EXPORTED)
get_npu_format = named_format  # the enumeration in place of the number

__all__ = [
    "Format",
    "_C",
    "__version__",
    "atb",
    "contrib",
    "distributed",
    "dynamo",
    "erase_stream",
    "matmul_checksum",
    "npu",
    "optim",
    "print_npugraph_tensor",
    "profiler",
    "save_npugraph_tensor",
    "utils",
    *_EXPORTED,
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

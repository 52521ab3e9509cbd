"""Compares `torch.npu` with the published torch-npu wheel, which is parsed and never imported.

    python scripts/torch_npu_names            prints what differs
    python scripts/torch_npu_names PAGE       writes it into the page (docs/compat.md)

The wheel is looked for in the folder that TOPROPE_CORPUS names, else downloaded with pip.

Run by hand; tests/compat/test_compat_torch_npu.py calls the same functions and demands the shares of names.toml.
`published` reads the wheel, `here` ours, `compare` compares, `page` and `report` write.
"""

from .compare import Comparison, compare
from .here import read_here
from .page import BEGIN, END, markdown, renewed
from .published import Published, Unreadable, find

__all__ = [
    "BEGIN",
    "END",
    "Comparison",
    "Published",
    "Unreadable",
    "compare",
    "find",
    "markdown",
    "read_here",
    "renewed",
]

"""Weights in 4 or 8 bits ("pages"): quantised tensors that are decoded, or multiplied without decoding them.

Example:
    from toprope.tiers import pages

    page = pages.encode(weight, "nvfp4")            # 4.5 bits a value; scales searched for the smallest error
    pages.decode(page, torch.bfloat16)              # back to bf16 values
    pages.product(x, page)                          # x @ weight.T from the codes
    pages.QuantisedLinear.from_linear(layer)        # a layer that does this
    pages.measure().speedup                         # speed relative to torch's bf16 product on this machine

Only the public names are here, which stay; the code is in `tiers.quant`. Tests: tests/tiers/test_pages_formats.py,
tests/tiers/test_pages_kernels.py.
"""

import warnings

from toprope.tiers.quant.codec import decode, encode
from toprope.tiers.quant.formats import FORMATS, Format
from toprope.tiers.quant.linear import QuantisedLinear
from toprope.tiers.quant.matmul import product
from toprope.tiers.quant.measure import Measurement, measure
from toprope.tiers.quant.tensor import QuantisedTensor

__all__ = [
    "FORMATS",
    "Format",
    "Measurement",
    "QuantisedLinear",
    "QuantisedTensor",
    "decode",
    "encode",
    "measure",
    "product",
]


def __getattr__(name: str) -> object:
    if name != "Page":  # deprecated in 0.1
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn("toprope.tiers.pages.Page is QuantisedTensor now", DeprecationWarning, stacklevel=2)
    return QuantisedTensor

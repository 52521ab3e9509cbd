"""Weights in 4 or 8 bits: pages that are decoded, or multiplied as they are.

Example:
    from toprope.tiers import pages

    page = pages.encode(weight, "nvfp4")            # 4.5 bits a value; scales searched for the smallest error
    pages.decode(page, torch.bfloat16)              # the values again
    pages.product(x, page)                          # x @ weight.T from the bytes of the page
    pages.QuantisedLinear.from_linear(layer)        # the same as a layer
    pages.measure().speedup                         # how many times faster than torch's bf16 it is on this machine
"""

from toprope.tiers.quant.codec import decode, encode
from toprope.tiers.quant.formats import FORMATS, Format
from toprope.tiers.quant.linear import QuantisedLinear
from toprope.tiers.quant.matmul import product
from toprope.tiers.quant.measure import Measurement, measure
from toprope.tiers.quant.tensor import Page

__all__ = ["FORMATS", "Format", "Measurement", "Page", "QuantisedLinear", "decode", "encode", "measure", "product"]

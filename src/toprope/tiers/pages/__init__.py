"""Weights in 4 or 8 bits: pages that are decoded, or multiplied as they are.

from toprope.tiers import pages

page = pages.encode(weight, "nvfp4")            # 4.5 bits a value; scales searched for the smallest error
pages.decode(page, torch.bfloat16)              # the values again
pages.product(x, page)                          # x @ weight.T from the bytes of the page
pages.QuantisedLinear.from_linear(layer)        # the same as a layer
pages.measure().speedup                         # how many times faster than torch's bf16 it is on this machine
"""

from toprope.tiers.pages.decode import decode
from toprope.tiers.pages.encode import encode
from toprope.tiers.pages.formats import FORMATS, Format
from toprope.tiers.pages.linear import QuantisedLinear
from toprope.tiers.pages.measure import Measurement, measure
from toprope.tiers.pages.page import Page
from toprope.tiers.pages.product import product

__all__ = ["FORMATS", "Format", "Measurement", "Page", "QuantisedLinear", "decode", "encode", "measure", "product"]

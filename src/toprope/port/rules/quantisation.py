"""Row 81a: weights that bitsandbytes quantises on behalf of another library."""

from __future__ import annotations

import ast

from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.rule import Example, Kind

__all__ = ["FAMILY"]

FAMILY = Family(
    "quantisation", "Quantised weights", words=[b"load_in_", b"BitsAndBytes", b"BnbQuant", b"load_and_quantize"]
)

QUANTISED = FAMILY.rule(
    "TR081a",
    Kind.NOT_CONVERTIBLE,
    "load_in_4bit=True, BitsAndBytesConfig, BnbQuantizationConfig: weights that bitsandbytes quantises",
    why="""transformers, diffusers and accelerate hand these to bitsandbytes, whose kernels are for CUDA; no file of the
    program imports that package. Load the weights in bfloat16, or quantised by torchao, off CUDA.""",
    source="transformers' documentation of quantisation; accelerate.utils.BnbQuantizationConfig",
    examples=[
        Example("model = load(name, load_in_8bit=True)"),
        Example(
            """
            from accelerate.utils import BnbQuantizationConfig

            config = BnbQuantizationConfig(load_in_4bit=True, bnb_4bit_compute_dtype=half)
            """
        ),
        Example("model = load(name, load_in_4bit=False)", reported=False),
    ],
)
_CLASSES = ("BitsAndBytesConfig", "BnbQuantizationConfig", "load_and_quantize_model")


def _is_quantiser(file: File, node: ast.expr) -> bool:
    return (file.dotted(node) or "").rpartition(".")[2] in _CLASSES


@FAMILY.keyword("load_in_4bit", "load_in_8bit")
def _wanted(file: File, node: ast.keyword) -> bool:
    call = file.parent(node)
    off = isinstance(node.value, ast.Constant) and not node.value.value
    if not off and not (isinstance(call, ast.Call) and _is_quantiser(file, call.func)):  # that is reported as a whole
        file.report(QUANTISED, node)
    return False


@FAMILY.node(ast.Call)
def _made(file: File, node: ast.Call) -> bool:
    if _is_quantiser(file, node.func):
        file.report(QUANTISED, node)
    return False

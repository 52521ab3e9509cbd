"""Rules TR061 to TR063a: where other libraries put what they load.

Found by `port.registry`. The examples of a rule are its test (tests/port/test_port_rules.py), and make its page.
Codes are public and stay.
"""

from __future__ import annotations

import ast

from toprope.port.analysis.places import is_card
from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.rule import Example, Kind
from toprope.port.rules.loading import says_cuda

__all__ = ["FAMILY"]

FAMILY = Family(
    "libraries", "Loading by other libraries",
    words=[b"safetensors", b"safe_open", b"device_map", b"pipeline", b"torchsummary"],
)  # fmt: skip

TENSORS = FAMILY.rule(
    "TR061",
    Kind.PRESERVING,
    'safetensors: load_file(device="cuda"), safe_open(device=0): the device in use',
    why="""A number means a GPU. The library wants a text or a number, not a torch.device.""",
    source="safetensors.torch.load_file; safetensors.safe_open",
    examples=[
        Example(
            """
            from safetensors.torch import load_file

            weights = load_file(path, device="cuda:0")
            """,
            """
            from toprope.device import portable
            from safetensors.torch import load_file

            weights = load_file(path, device=portable.name("cuda:0"))
            """,
        ),
        Example(
            """
            from safetensors import safe_open

            with safe_open(path, framework="pt", device=0) as file:
                pass
            """,
            """
            from toprope.device import portable
            from safetensors import safe_open

            with safe_open(path, framework="pt", device=portable.name(0)) as file:
                pass
            """,
        ),
        Example(
            """
            from safetensors.torch import load_file

            weights = load_file(path, device="cpu")
            """,
            reported=False,
        ),
    ],
)
_LIBRARY = {"safetensors.torch.load_file": 1, "safetensors.safe_open": 2, "safetensors.torch.safe_open": 2}


@FAMILY.call(*_LIBRARY)
def _tensors(file: File, node: ast.Call) -> bool:
    device = file.argument(node, _LIBRARY[file.dotted(node.func) or ""], "device")
    if device is not None and (says_cuda(device) or is_card(file, device)):
        _settle(file, device)
        file.report(TENSORS, device, edits=file.replace(device, *_name(file, device)))
    return False


def _settle(file: File, node: ast.expr) -> None:
    """Note that a device is dealt with; torch.cuda.current_device() itself is still looked at."""
    file.pass_over(node) if isinstance(node, ast.Call) else file.done(node)


def _name(file: File, node: ast.expr) -> tuple[str | ast.AST, ...]:
    if isinstance(node, ast.Constant) and node.value == "cuda":
        return (f"{file.portable('name')}()",)
    return f"{file.portable('name')}(", node, ")"


MAP = FAMILY.rule(
    "TR062",
    Kind.REVIEW,
    'from_pretrained(device_map="cuda"), device_map={"": 0}: the device in use',
    why="""Numbers in a device map mean GPUs. "auto" lets accelerate look for itself and is left alone.""",
    source="transformers' and accelerate's documentation of device_map",
    examples=[
        Example(
            """
            model = AutoModel.from_pretrained(name, device_map="cuda")
            """,
            """
            from toprope.device import portable
            model = AutoModel.from_pretrained(name, device_map=portable.name())
            """,
        ),
        Example(
            """
            import torch
            model = AutoModel.from_pretrained(name, device_map={"": 0})
            other = AutoModel.from_pretrained(name, device_map={"": torch.cuda.current_device()})
            """,
            """
            import torch
            from toprope.device import portable
            model = AutoModel.from_pretrained(name, device_map={"": portable.name(0)})
            other = AutoModel.from_pretrained(name, device_map={"": portable.name(portable.current_device())})
            """,
        ),
        Example('model = AutoModel.from_pretrained(name, device_map="auto")', reported=False),
    ],
)


@FAMILY.keyword("device_map")
def _map(file: File, node: ast.keyword) -> bool:
    value = node.value
    places = value.values if isinstance(value, ast.Dict) else [value]
    told = [each for each in places if says_cuda(each) or is_card(file, each)]
    for each in told:
        _settle(file, each)
        file.report(MAP, each, edits=file.replace(each, *_name(file, each)))
    return bool(told)


PIPELINE = FAMILY.rule(
    "TR063",
    Kind.PRESERVING,
    "transformers.pipeline(device=0): the device in use",
    why="""A number means a GPU where torch has one, and otherwise what transformers takes it for.""",
    source="transformers.pipeline",
    examples=[
        Example(
            """
            from transformers import pipeline

            ask = pipeline("text-generation", model=name, device=0)
            """,
            """
            from toprope.device import portable
            from transformers import pipeline

            ask = pipeline("text-generation", model=name, device=portable.device(0))
            """,
        ),
        Example(
            """
            from transformers import pipeline

            ask = pipeline("text-generation", device=-1)
            """,
            reported=False,
        ),
    ],
)


@FAMILY.call("transformers.pipeline")
def _pipeline(file: File, node: ast.Call) -> bool:
    device = file.argument(node, None, "device")
    if device is not None and is_card(file, device):
        _settle(file, device)
        file.report(PIPELINE, device, edits=file.replace(device, f"{file.portable('device')}(", device, ")"))
    return False


SUMMARY = FAMILY.rule(
    "TR063a",
    Kind.REVIEW,
    "torchsummary.summary(model): its input is on CUDA or the CPU, wherever the model is",
    why="""The package makes the model's input by itself, on CUDA where there is one and on the CPU elsewhere: a model
    that is on another card fails. torchinfo.summary follows the model.""",
    source="torchsummary.summary: device is cuda by default; a reader's program failed on the simulated card",
    examples=[
        Example("from torchsummary import summary\n\nsummary(model, input_size=(3, 4, 4))\n"),
        Example('from torchsummary import summary\n\nsummary(model, (3, 4), device="cpu")\n', reported=False),
    ],
)


@FAMILY.call("torchsummary.summary")
def _summary(file: File, node: ast.Call) -> bool:
    device = file.argument(node, 3, "device")
    if not isinstance(device, ast.Constant) or device.value != "cpu":
        file.report(SUMMARY, node)
    return False

"""Row 104: devices that Lightning and similar frameworks are given."""

from __future__ import annotations

import ast

from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.rule import Example, Kind

__all__ = ["FAMILY"]

FAMILY = Family("frameworks", "Training frameworks", words=[b"ExecutionProvider", b"accelerator", b"gpus"])

ACCELERATOR = FAMILY.rule(
    "TR104",
    Kind.REVIEW,
    'Trainer(accelerator="gpu"): "auto"',
    why="""Lightning then takes what there is; on a machine without a GPU the CPU, instead of an error. Whether it knows
    the other device is a matter of its version and of plug-ins.""",
    source="Lightning's documentation of Trainer",
    examples=[
        Example(
            """
            import pytorch_lightning as pl

            trainer = pl.Trainer(accelerator="gpu", devices=2)
            """,
            """
            import pytorch_lightning as pl

            trainer = pl.Trainer(accelerator="auto", devices=2)
            """,
        ),
        Example('book(accelerator="gpu")', reported=False),
        Example(
            """
            import pytorch_lightning as pl

            trainer = pl.Trainer(accelerator="cpu")
            """,
            reported=False,
        ),
    ],
)
_TRAINERS = [
    f"{package}.{name}"
    for package in ("pytorch_lightning", "lightning", "lightning.pytorch", "lightning.fabric", "lightning_fabric")
    for name in ("Trainer", "Fabric")
]


@FAMILY.call(*_TRAINERS)
def _trainer(file: File, node: ast.Call) -> bool:
    told = file.keyword(node, "accelerator")
    if told is not None and isinstance(told.value, ast.Constant) and told.value.value in ("gpu", "cuda", "ddp"):
        quote = file.text(told.value)[-1]
        file.report(ACCELERATOR, told.value, edits=file.replace(told.value, f"{quote}auto{quote}"))
        file.done(told.value)
    elif told is not None and isinstance(told.value, ast.IfExp):
        _chosen(file, told.value)
    number = next((each for each in node.keywords if each.arg in ("gpus", "gpu")), None)
    if number is not None:
        file.report(GPUS, number.value.body if isinstance(number.value, ast.IfExp) else number)
    return False


def _chosen(file: File, node: ast.IfExp) -> None:
    """`"gpu" if torch.cuda.is_available() else "cpu"`: what "auto" means. With more in the condition it stays."""
    arms = [each.value if isinstance(each, ast.Constant) else None for each in (node.body, node.orelse)]
    asked = node.test.operand if isinstance(node.test, ast.UnaryOp) else node.test
    if sorted(map(str, arms)) in (["cpu", "gpu"], ["cpu", "cuda"]):
        plain = isinstance(asked, ast.Call) and file.dotted(asked.func) == "torch.cuda.is_available"
        gpu = node.body if arms[0] != "cpu" else node.orelse
        quote = file.text(gpu)[-1]
        if plain:
            file.report(ACCELERATOR, node, edits=file.replace(node, f"{quote}auto{quote}"))
        else:
            file.report(ACCELERATOR, gpu, 'Lightning knows "gpu" as CUDA alone: "auto" lets it choose')
        for each in ast.walk(node) if plain else (gpu,):
            file.done(each)


GPUS = FAMILY.rule(
    "TR104a",
    Kind.NOT_CONVERTIBLE,
    'Trainer(gpus=n): accelerator="auto", devices=n',
    why="""Lightning has no argument gpus since its version 2, and where it has one it means GPUs.""",
    source="Lightning's list of changes of 2.0",
    examples=[
        Example(
            """
            import pytorch_lightning as pl

            trainer = pl.Trainer(gpus=1)
            """
        ),
    ],
)


PROVIDER = FAMILY.rule(
    "TR104b",
    Kind.REVIEW,
    'InferenceSession(providers=["CUDAExecutionProvider"]): onnxruntime on CUDA',
    why="""onnxruntime leaves out a provider that its build does not have, with a warning, and runs on the CPU. Its
    provider for NPUs is "CANNExecutionProvider", in a build of its own: put it into the list in front of the CPU's, or
    choose among onnxruntime.get_available_providers().""",
    source="onnxruntime's documentation of execution providers",
    examples=[
        Example(
            """
            import onnxruntime

            session = onnxruntime.InferenceSession(path, providers=["CUDAExecutionProvider", "CPUExecutionProvider"])
            """
        ),
        Example('providers = ["CANNExecutionProvider", "CUDAExecutionProvider"]', reported=False),
    ],
)


@FAMILY.string("CUDAExecutionProvider", "TensorrtExecutionProvider")
def _provider(file: File, node: ast.Constant) -> bool:
    if "CANNExecutionProvider" not in file.source.text and not any(each.rule is PROVIDER for each in file.findings):
        file.report(PROVIDER, node, f'{file.text(node)} is NVIDIA\'s; onnxruntime has "CANNExecutionProvider" for NPUs')
    return True

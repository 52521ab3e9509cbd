"""Row 104: what Lightning and its like are told about devices."""

from __future__ import annotations

import ast

from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.rule import Example, Kind

__all__ = ["FAMILY"]

FAMILY = Family("frameworks", "Training frameworks", words=[b"ExecutionProvider", b"accelerator", b"gpus", b"ray"])

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


RESOURCE = FAMILY.rule(
    "TR104c",
    Kind.REVIEW,
    '@ray.remote(num_gpus=1), bundles {"GPU": 1}, ray.get_gpu_ids(): what Ray calls a GPU',
    why="""Ray counts GPUs under the resource "GPU" and NPUs under "NPU", for which it has no argument of its own:
    resources={"NPU": 1}. On a machine without GPUs an actor or a placement group that asks for them waits for ever.
    ray.get_gpu_ids() is empty there; get_runtime_context().get_accelerator_ids()["NPU"] is not.""",
    source="Ray's documentation of accelerators",
    examples=[
        Example(
            """
            import ray

            @ray.remote(num_gpus=1)
            class Worker:
                pass

            bundles = [{"GPU": 1, "CPU": 1}]
            print(ray.get_gpu_ids())
            """
        ),
        Example(
            """
            import ray

            @ray.remote(num_gpus=0)
            def count():
                pass
            """,
            reported=False,
        ),
        Example('run(num_gpus=1, sizes={"GPU": 1})', reported=False),
    ],
)


def _has_ray(file: File) -> bool:
    found = (each.imported or "" for bindings in file.walk.module.bindings.values() for each in bindings)
    return any(each.partition(".")[0] == "ray" for each in found)


@FAMILY.keyword("num_gpus")
def _asked_of_ray(file: File, node: ast.keyword) -> bool:
    is_none = isinstance(node.value, ast.Constant) and not node.value.value
    if _has_ray(file) and not is_none and not any(each.rule is RESOURCE for each in file.findings):
        file.report(RESOURCE, node, f'{file.text(node)}: Ray counts NPUs as the resource "NPU": resources={{"NPU": 1}}')
    return False


@FAMILY.string("GPU")
def _bundle(file: File, node: ast.Constant) -> bool:
    around = file.parent(node)
    is_key = isinstance(around, ast.Dict) and node in around.keys
    if is_key and _has_ray(file) and not any(each.rule is RESOURCE for each in file.findings):
        file.report(RESOURCE, node, 'Ray counts NPUs as the resource "NPU"')
    return False


@FAMILY.call("ray.get_gpu_ids")
def _numbers_of_ray(file: File, node: ast.Call) -> bool:
    file.report(RESOURCE, node)
    return False


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

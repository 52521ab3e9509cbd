"""Rules TR104, TR104a, TR104b and TR104c: devices that Lightning and similar frameworks are given.

Found by `port.registry`. The examples of a rule are its test (tests/port/test_port_rules.py), and make its page.
Codes are public and stay. More tests: tests/port/test_port_unseen.py, tests/port/test_port_unseen_silent.py.
"""

from __future__ import annotations

import ast

from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.project.facts import last_name, option_of
from toprope.port.rule import Example, Kind
from toprope.port.syntax.nodes import nodes_of

__all__ = ["FAMILY"]

FAMILY = Family(
    "frameworks", "Training frameworks",
    words=[b"ExecutionProvider", b"accelerator", b"gpus", b"get_gpu_ids", b"\"GPU\"", b"'GPU'"],
)  # fmt: skip

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
        Example(
            """
            from pytorch_lightning import Trainer

            parser.add_argument("--accelerator", default="gpu")
            trainer = Trainer(accelerator=parser.parse_args().accelerator)
            """
        ),
        Example(
            """
            from pytorch_lightning.lite import LightningLite

            class Run(LightningLite):
                pass

            Run(accelerator="gpu", devices=2).run()
            """,
            """
            from pytorch_lightning.lite import LightningLite

            class Run(LightningLite):
                pass

            Run(accelerator="auto", devices=2).run()
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
    for package in ("pytorch_lightning", "lightning", "lightning.pytorch", "lightning.fabric", "lightning_fabric",
                    "pytorch_lightning.lite", "lightning.lite")
    for name in ("Trainer", "Fabric", "LightningLite")
]  # fmt: skip
_ADVICE = 'Lightning knows "gpu" as CUDA alone: "auto" lets it choose'


def _imports(file: File, *packages: str) -> bool:
    """Return whether the file imports one of these packages, or something of it, anywhere."""
    nodes = (each for each in file.walk.parents if isinstance(each, ast.Import | ast.ImportFrom))
    tops = {
        name.partition(".")[0]
        for each in nodes
        for name in ([each.module or ""] if isinstance(each, ast.ImportFrom) else [one.name for one in each.names])
    }
    return bool(tops & set(packages))


@FAMILY.keyword("accelerator")
def _own_trainer(file: File, node: ast.keyword) -> bool:
    """A class of the project that inherits from a trainer of Lightning."""
    call = file.parent(node)
    if not isinstance(call, ast.Call) or file.dotted(call.func) in _TRAINERS:
        return False
    bases = file.project.ancestors(last_name(call.func)) if last_name(call.func) in file.project.classes else set()
    if bases & {"LightningLite", "Fabric", "Trainer"} - file.project.classes.keys():
        _trainer(file, call)
    return file.is_done(node.value)


@FAMILY.method("add_argument", "option")
def _option(file: File, node: ast.Call) -> bool:
    default = file.keyword(node, "default")
    value = default.value if default is not None else None
    if option_of(node) == "accelerator" and isinstance(value, ast.Constant) and value.value in ("gpu", "cuda"):
        file.report(ACCELERATOR, value, f"{_ADVICE}, where it is the option's value")
        file.done(value)
    return False


@FAMILY.string("gpu")
def _in_table(file: File, node: ast.Constant) -> bool:
    """`{"accelerator": "gpu"}`, which is handed to a trainer."""
    around = file.parent(node)
    if not isinstance(around, ast.Dict) or node not in around.values:
        return False
    key = around.keys[around.values.index(node)]
    named = isinstance(key, ast.Constant) and key.value == "accelerator"
    if named and _imports(file, "pytorch_lightning", "lightning", "lightning_fabric"):
        file.report(ACCELERATOR, node, _ADVICE)
    return False


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
            file.report(ACCELERATOR, gpu, _ADVICE)
        for each in nodes_of(node) if plain else (gpu,):
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


RAY = FAMILY.rule(
    "TR104c",
    Kind.REVIEW,
    'ray.remote(num_gpus=1), bundles of {"GPU": 1}, ray.get_gpu_ids(): Ray\'s resource for CUDA',
    why="""Ray finds NPUs by itself and calls them "NPU": a machine with NPUs has no resource "GPU", so that a task or a
    placement group that asks for one waits for ever. Ask for resources={"NPU": 1}, or choose by
    portable.kind(); ray.get_runtime_context().get_accelerator_ids() has the numbers of all kinds.""",
    source="Ray's documentation of accelerators",
    examples=[
        Example(
            """
            import ray

            @ray.remote(num_gpus=1)
            def work():
                return ray.get_gpu_ids()
            """
        ),
        Example(
            """
            from ray.util.placement_group import placement_group

            group = placement_group([{"GPU": 1, "CPU": 1}] * 4)
            """
        ),
        Example("import ray\n\nworker = Worker.options(num_cpus=1, num_gpus=share).remote()"),
        Example("import ray\n\nray.init(num_gpus=0)", reported=False),
        Example("train(num_gpus=1)", reported=False),
    ],
)


@FAMILY.keyword("num_gpus", "num_gpus_per_worker")
def _asked_of_ray(file: File, node: ast.keyword) -> bool:
    call = file.parent(node)
    name = last_name(call.func) if isinstance(call, ast.Call) else ""
    is_nothing = isinstance(node.value, ast.Constant) and not node.value.value
    of_ray = isinstance(call, ast.Call) and (file.dotted(call.func) or "").startswith("ray.")
    if not is_nothing and (of_ray or (name in ("options", "remote", "resources") and _imports(file, "ray"))):
        file.report(RAY, node, f'{file.text(node)}: Ray counts NPUs as the resource "NPU": resources={{"NPU": 1}}')
    return False


@FAMILY.string("GPU")
def _resource_of_ray(file: File, node: ast.Constant) -> bool:
    around = file.parent(node)
    is_key = (isinstance(around, ast.Dict) and node in around.keys) or (
        isinstance(around, ast.Subscript) and around.slice is node
    )
    if is_key and _imports(file, "ray"):
        said = f"{file.text(around)}: " if isinstance(around, ast.Dict) else ""
        file.report(RAY, node, f'{said}"GPU" is Ray\'s resource for CUDA; NPUs are "NPU"')
    return False


@FAMILY.call("ray.get_gpu_ids")
def _numbers_of_ray(file: File, node: ast.Call) -> bool:
    file.report(RAY, node, "it has the numbers of GPUs alone: ray.get_runtime_context().get_accelerator_ids()")
    return False


@FAMILY.node(ast.Subscript)
def _setting(file: File, node: ast.Subscript) -> bool:
    """`trainer_config["gpus"] = 1` of what a Trainer is made of."""
    is_asked = isinstance(node.slice, ast.Constant) and node.slice.value == "gpus"
    if not is_asked or any(each.rule is GPUS for each in file.findings):
        return False
    if _imports(file, "lightning", "pytorch_lightning"):
        file.report(GPUS, node, "Lightning 2 has no gpus any more: accelerator and devices take its place")
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

"""Rules TR030 to TR033: random numbers of a card.

Found by `port.registry`. The examples of a rule are its test (tests/port/test_port_rules.py), and make its page.
Codes are public and stay.
"""

from __future__ import annotations

import ast

from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.rule import Example, Kind
from toprope.port.runtime.stand_ins import refused

__all__ = ["FAMILY"]

FAMILY = Family("random", "Random numbers", words=[b"cuda", b"fork_rng"])

SEEDS = FAMILY.rule(
    "TR030",
    Kind.PRESERVING,
    "torch.cuda.manual_seed(s) and manual_seed_all(s): the generators of the device in use are seeded",
    why="""torch.cuda seeds GPUs alone. torch.manual_seed seeds every device too, but a program that calls this one
    later, or with another seed, means this generator.""",
    source="tried: torch.cuda.manual_seed_all leaves a device of another kind as it is",
    examples=[
        Example(
            """
            import torch

            torch.cuda.manual_seed_all(42)
            print(torch.cuda.initial_seed())
            """,
            """
            import torch
            from toprope.device import portable

            portable.manual_seed_all(42)
            print(portable.initial_seed())
            """,
        ),
    ],
)
_SEEDS = ("manual_seed", "manual_seed_all", "seed", "seed_all", "initial_seed")
FAMILY.drop_in(SEEDS, _SEEDS)
FAMILY.drop_in(SEEDS, _SEEDS, below="torch.cuda.random")

STATES = FAMILY.rule(
    "TR031",
    Kind.REVIEW,
    "torch.cuda.get_rng_state() and its like: the state of the device in use",
    why="""The state of another kind of device has another size: one that was saved on a GPU cannot be set on an NPU,
    nor the other way round. On the CPU the state is empty and setting it does nothing, as in a torch without CUDA.""",
    source="tried: 16 bytes on CUDA, other sizes elsewhere",
    examples=[
        Example(
            """
            import torch

            state = {"cuda": torch.cuda.get_rng_state_all()}
            torch.cuda.set_rng_state_all(state["cuda"])
            """,
            """
            import torch
            from toprope.device import portable

            state = {"cuda": portable.get_rng_state_all()}
            portable.set_rng_state_all(state["cuda"])
            """,
        ),
    ],
)
_STATES = ("get_rng_state", "get_rng_state_all", "set_rng_state", "set_rng_state_all")
FAMILY.drop_in(STATES, _STATES)
FAMILY.drop_in(STATES, _STATES, below="torch.cuda.random")

GENERATORS = FAMILY.rule(
    "TR031a",
    Kind.NOT_CONVERTIBLE,
    "torch.cuda.default_generators: CUDA's own list of generators",
    why="""No other device has it under the same name on every version of torch. Most uses want the state of the
    generator, or a generator of their own: portable.get_rng_state() and portable.generator().""",
    source="torch/cuda/__init__.py; torch_npu has torch.npu.default_generators",
    examples=[
        Example(
            """
            import torch

            generator = torch.cuda.default_generators[0]
            """
        ),
    ],
)


@FAMILY.reference("torch.cuda.default_generators")
def _default_generators(file: File, node: ast.expr) -> bool:
    file.report(GENERATORS, node)
    return True


GENERATOR = FAMILY.rule(
    "TR032",
    Kind.REVIEW,
    'torch.Generator("cuda"): a generator of the device in use',
    why="""Every kind of device draws other numbers from the same seed: pictures and samples will differ from those of a
    GPU. What has to be the same everywhere is drawn on the CPU and moved.""",
    source="PyTorch's notes on reproducibility",
    examples=[
        Example(
            """
            import torch

            generator = torch.Generator(device="cuda").manual_seed(7)
            """,
            """
            import torch
            from toprope.device import portable

            generator = portable.generator().manual_seed(7)
            """,
        ),
        Example(
            """
            import torch

            generator = torch.Generator("cuda:1")
            """,
            """
            import torch
            from toprope.device import portable

            generator = portable.generator("cuda:1")
            """,
        ),
        Example(
            """
            import torch

            generator = torch.Generator("cpu")
            """,
            reported=False,
        ),
    ],
)


@FAMILY.call("torch.Generator")
def _generator(file: File, node: ast.Call) -> bool:
    device = file.argument(node, 0, "device")
    if len(node.args) + len(node.keywords) != 1 or not isinstance(device, ast.Constant):
        return False
    text = device.value
    if not isinstance(text, str) or text.partition(":")[0] != "cuda":
        return False
    given: tuple[str | ast.AST, ...] = ("()",) if text == "cuda" else ("(", device, ")")
    file.done(device)
    file.report(GENERATOR, node, edits=file.replace(node, file.portable("generator"), *given))
    return True


FORK = FAMILY.rule(
    "TR033",
    Kind.PRESERVING,
    "torch.random.fork_rng(devices=...): of the device in use",
    why="""Without device_type the generators of GPUs are saved and put back, and those of another device go on from
    where the block left them. torch takes device_type since 2.1 alone, and knows no device of the CPU's to save; the
    runtime's function does both.""",
    source="torch.random.fork_rng: device_type is cuda where it is left out",
    examples=[
        Example(
            """
            import torch

            with torch.random.fork_rng(devices=[0]):
                torch.manual_seed(1)
            """,
            """
            import torch
            from toprope.device import portable

            with portable.fork_rng(devices=[0]):
                torch.manual_seed(1)
            """,
        ),
        Example(
            """
            import torch

            with torch.random.fork_rng(devices=[], enabled=True):
                torch.manual_seed(1)
            """,
            reported=False,
        ),
        Example(
            """
            import torch

            with torch.random.fork_rng(devices=[0], device_type="xpu"):
                torch.manual_seed(1)
            """,
            reported=False,
        ),
    ],
)


@FAMILY.call("torch.random.fork_rng")
def _fork(file: File, node: ast.Call) -> bool:
    devices = file.argument(node, 0, "devices")
    none = isinstance(devices, ast.List | ast.Tuple) and not devices.elts
    if devices is None or none or file.argument(node, 4, "device_type") is not None:
        return False
    if any(each.arg is None for each in node.keywords) or any(isinstance(each, ast.Starred) for each in node.args):
        return False
    file.report(FORK, node, edits=file.rename(node, "fork_rng"), held_back=refused("fork_rng", node))
    file.done(node.func)
    return False

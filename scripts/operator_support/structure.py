"""How torch's dispatcher treats an operator that a backend has no kernel for, from the torch that is installed.

Called by `__main__`: an operator without a kernel still works on a card where torch composes it of others. The answers
are those of the torch that is installed, whose version is written into the table; names of dispatch keys are torch's.

No test runs it. tests/support/test_operators_on_card.py holds the table that comes of it.
"""

from __future__ import annotations

import importlib.resources
from dataclasses import dataclass, field

import torch
import yaml

__all__ = ["Structure", "read"]


@dataclass
class Structure:
    """Names are those of ATen with their overload, without "aten::".

    Attributes:
        version: the torch that was read.
        delegates: structured operators with the `out` variant that does their work.
        composed: operators that torch composes of others where a backend has no kernel.
        host: operators with a kernel for the CPU that a backend without one leaves to its fallback.
        nowhere: the same without a kernel for the CPU: the fallback fails.
    """

    version: str
    delegates: dict[str, str] = field(default_factory=dict)
    composed: list[str] = field(default_factory=list)
    host: list[str] = field(default_factory=list)
    nowhere: list[str] = field(default_factory=list)


def read() -> Structure:
    """Ask the dispatcher, and torchgen's list of functions for the structured ones."""
    found = Structure(torch.__version__.partition("+")[0])
    native = importlib.resources.files("torchgen").joinpath("packaged/ATen/native/native_functions.yaml")
    entries = yaml.load(native.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    structured = {
        entry["func"].partition("(")[0]: entry["structured_delegate"]
        for entry in entries
        if "structured_delegate" in entry
    }
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    for full in sorted(name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")):
        name = full.removeprefix("aten::")
        if name in structured:
            found.delegates[name] = structured[name]
        elif any(has(full, f"Composite{kind}") for kind in ("ImplicitAutograd", "ExplicitAutograd")) or has(
            full, "CompositeExplicitAutogradNonFunctional"
        ):
            found.composed.append(name)
        elif has(full, "CPU"):
            found.host.append(name)
        elif any(has(full, key) for key in ("CUDA", "Meta", "MPS", "XPU")) or not _is_of_jit(full):
            found.nowhere.append(name)
    return found


def _is_of_jit(full: str) -> bool:
    """True if an operator is TorchScript's own (numbers, strings, lists), and has no tensor."""
    schema = next((one for one in torch._C._jit_get_schemas_for_operator(full.partition(".")[0])), None)
    return schema is None or not any("Tensor" in str(argument.type) for argument in schema.arguments)

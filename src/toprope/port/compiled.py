"""Uses of what is compiled for CUDA: modules of extensions, and operators that such a module registers with torch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from toprope.port.file import File

__all__ = ["compiled_uses", "uses_in"]

_IMPORTS = {"TR121"}
_OPERATORS_OF_TORCH = {
    "aten", "prim", "prims", "profiler", "quantized", "image", "torchvision", "torchaudio", "c10d",
    "_c10d_functional", "c10d_functional", "inductor", "higher_order", "mkldnn", "onednn", "sparse", "debugprims",
}  # fmt: skip


def compiled_uses(file: File) -> Iterator[ast.expr]:
    """Find where the file names a module that is compiled for CUDA, or an operator that is not torch's own.

    A module is one that rule TR121 reports, or a module of the project that builds an extension or loads one when it
    is first called.
    """
    yield from uses_in(file, file.walk.module.node)


def uses_in(file: File, part: ast.AST) -> Iterator[ast.expr]:
    """The same for a part of the file."""
    imports = {node for finding, node in file.places if finding.rule.code in _IMPORTS}
    for node in ast.walk(part):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            if any(each.node in imports or _is_compiled(file, each.imported) for each in file.bindings(node)):
                yield node
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
            name = file.dotted(node) or ""
            library = name.removeprefix("torch.ops.").partition(".")[0]
            if name.startswith("torch.ops.") and name.count(".") == 3 and library not in _OPERATORS_OF_TORCH:
                yield node


def _is_compiled(file: File, imported: str | None) -> bool:
    names = (imported or "").split(".")
    return names[0] != "torch" and names[-1] in file.context.compiled

"""Modules of torch that the releases which ported code needs no longer have.

Found by `port.registry`. The examples of a rule are its test (tests/port/test_port_rules.py), and make its page.
Codes are public and stay.
"""

from __future__ import annotations

import ast

from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.rule import Example, Kind

__all__ = ["FAMILY"]

FAMILY = Family("legacy", "Modules that torch no longer has", words=[b"torch._six"])

SIX = FAMILY.rule(
    "TR122",
    Kind.REVIEW,
    "from torch._six import inf: a module that torch no longer has since 2.0",
    why="""Ported code needs torch 2.0 or newer, where the import of torch._six fails. inf and nan are names of torch
    itself; string_classes is (str, bytes), int_classes is int, container_abcs is collections.abc.""",
    source="tried: ModuleNotFoundError",
    examples=[
        Example("from torch._six import inf", "from torch import inf"),
        Example("from torch._six import container_abcs, string_classes"),
        Example(
            """
            try:
                from torch._six import string_classes
            except ImportError:
                string_classes = (str, bytes)
            """,
            reported=False,
        ),
    ],
)


@FAMILY.node(ast.Import, ast.ImportFrom)
def _six(file: File, node: ast.Import | ast.ImportFrom) -> bool:
    module = node.module if isinstance(node, ast.ImportFrom) else ""
    if module != "torch._six" and not any(f"{module}.{each.name}".lstrip(".") == "torch._six" for each in node.names):
        return False
    if not file.is_tried(node):
        plain = module == "torch._six" and all(each.name in ("inf", "nan") for each in node.names)
        names = ", ".join(map(ast.unparse, node.names))
        file.report(SIX, node, edits=file.replace(node, f"from torch import {names}") if plain else ())
    return False

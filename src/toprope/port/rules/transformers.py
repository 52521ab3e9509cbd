"""Rule TR078: the attention that transformers is asked for.

Found by `port.registry`. The examples of a rule are its test (tests/port/test_port_rules.py), and make its page.
Codes are public and stay.
"""

from __future__ import annotations

import ast

from toprope.port.family import Family
from toprope.port.file import File
from toprope.port.project.facts import last_name
from toprope.port.rule import Example, Kind

__all__ = ["FAMILY"]

FAMILY = Family("transformers", "Attention of transformers", words=[b"attn_implementation", b"use_flash_attention_2"])

WANTED = FAMILY.rule(
    "TR078",
    Kind.REVIEW,
    'attn_implementation="flash_attention_2": "sdpa" where there is no flash_attn',
    why="""transformers raises where the package is missing. "sdpa" is torch's own attention, which reaches the vendor's
    fused kernel on NPUs.""",
    source="transformers' documentation of attention",
    examples=[
        Example(
            """
            model = load(name, attn_implementation="flash_attention_2")
            """,
            """
            from toprope.device import portable
            model = load(name, attn_implementation=portable.attention_implementation("flash_attention_2"))
            """,
        ),
        Example('model = load(name, attn_implementation="sdpa")', reported=False),
    ],
)


@FAMILY.keyword("attn_implementation", "_attn_implementation")
def _wanted(file: File, node: ast.keyword) -> bool:
    value = node.value
    if not isinstance(value, ast.Constant) or "flash" not in str(value.value):
        return False
    call = file.parent(node)
    name = last_name(call.func) if isinstance(call, ast.Call) else ""
    if name in file.project.classes and not file.project.ancestors(name) - file.project.classes.keys():
        file.report(WANTED, value, f"{name} is a class of this project: choose where the attention is called")
        return True
    edits = file.replace(value, f"{file.portable('attention_implementation')}(", value, ")")
    file.report(WANTED, value, edits=edits)
    return True


@FAMILY.keyword("use_flash_attention_2")
def _wanted_before(file: File, node: ast.keyword) -> bool:
    file.report(WANTED, node, 'attn_implementation="flash_attention_2" is the name for it today')
    return True

"""Signatures of the runtime's functions: a call is converted only where the runtime takes its arguments.

Used by `family` and some rules. They are read from `device/_portable_runtime.py`; only what its text does not say is
in `_FIXED`. Tests: tests/port/test_port_conditions.py, tests/port/test_port_rules.py.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from toprope.port.runtime.vendor import text

__all__ = ["Signature", "refused", "signatures"]


@dataclass(frozen=True)
class Signature:
    """Arguments of a function.

    Attributes:
        names: those that may be given by name.
        positions: how many may be given without a name; None for any number.
        any_name: whether it takes names that it does not list.
        fixed: those that are taken with their default alone: position and default by name.
    """

    names: frozenset[str]
    positions: int | None
    any_name: bool = False
    fixed: tuple[tuple[str, int, object], ...] = ()


_FIXED = {"flash_attn_func": ("window_size", "softcap", "alibi_slopes", "return_attn_probs"),
          "memory_efficient_attention": ("op", "output_dtype")}  # fmt: skip
"""Arguments that the function takes so that a call may name them, and refuses where they are not the default."""


@cache
def signatures() -> dict[str, Signature]:
    """The signatures of all functions and classes of the runtime, by their names."""
    found: dict[str, Signature] = {}
    aliases: list[tuple[str, str]] = []
    module = ast.parse(text())
    blocks = [module.body, *(each.orelse for each in module.body if isinstance(each, ast.If))]
    for statement in (each for block in blocks for each in block):
        if isinstance(statement, ast.FunctionDef):
            found[statement.name] = _signature(statement.args, 0, _FIXED.get(statement.name, ()))
        elif isinstance(statement, ast.ClassDef):
            made = {each.name: each for each in statement.body if isinstance(each, ast.FunctionDef)}
            init = made.get("__init__") or made.get("__new__")
            if init is not None:
                found[statement.name] = _signature(init.args, 1)
        elif isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Name):
            aliases += [(each.id, statement.value.id) for each in statement.targets if isinstance(each, ast.Name)]
    for name, meant in aliases:
        if meant in found:
            found[name] = found[meant]
    return found


def _signature(arguments: ast.arguments, first: int, fixed: Sequence[str] = ()) -> Signature:
    positional = [*arguments.posonlyargs, *arguments.args][first:]
    names = [each.arg for each in (*positional, *arguments.kwonlyargs)]
    values = [*[None] * (len(positional) - len(arguments.defaults)), *arguments.defaults, *arguments.kw_defaults]
    defaults = {
        name: ast.literal_eval(value) for name, value in zip(names, values, strict=True) if name in fixed and value
    }
    return Signature(
        frozenset(names),
        None if arguments.vararg else len(positional),
        arguments.kwarg is not None,
        tuple((each, names.index(each), defaults[each]) for each in fixed),
    )


def _is_value(node: ast.expr, value: object) -> bool:
    try:
        return bool(ast.literal_eval(node) == value)
    except ValueError:  # no literal
        return False


def refused(name: str, call: ast.Call) -> str:
    """Return why the runtime's function does not take a call's arguments; "" where it does, or is not known."""
    signature = signatures().get(name)
    if signature is None:
        return ""
    for each in call.keywords:
        if each.arg is not None and each.arg not in signature.names and not signature.any_name:
            return f"portable.{name} has no argument {each.arg}"
    named = {each.arg: each.value for each in call.keywords}
    starred = any(isinstance(each, ast.Starred) for each in call.args)
    if signature.positions is not None and not starred and len(call.args) > signature.positions:
        return f"portable.{name} takes {signature.positions} arguments, and {len(call.args)} are given"
    for argument, position, default in signature.fixed:
        given = named.get(argument, call.args[position] if position < len(call.args) and not starred else None)
        if given is not None and not _is_value(given, default):
            return f"portable.{name} takes {argument} as {default} alone"
    return ""

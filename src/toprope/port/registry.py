"""All rules: the families of `toprope/port/rules`, a dispatch table of their functions, and rules of other files.

Used by `engine`, `scan` and `pages`. A file in `port/rules` with a `FAMILY` is found by being there. Tests:
tests/port/test_port_rules.py, tests/port/test_port_reported.py.
"""

from __future__ import annotations

import ast
import copyreg
import pkgutil
import re
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from toprope.port.family import Family, Handler
from toprope.port.files import text_rules
from toprope.port.report.trace import AT_RUN_TIME
from toprope.port.rule import Rule

__all__ = ["Table", "all_rules", "families", "python_rules", "table"]


@cache
def families() -> tuple[Family, ...]:
    """The families, by name: `FAMILY` of every file in `toprope/port/rules`."""
    package = import_module("toprope.port.rules")
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__) if not module.name.startswith("_"))
    return tuple(import_module(f"toprope.port.rules.{name}").FAMILY for name in names)


@cache
def python_rules() -> dict[str, Rule]:
    """The rules about Python by their codes, in their order."""
    found = [rule for family in families() for rule in family.rules]
    return {rule.code: rule for rule in sorted(found, key=lambda rule: rule.code)}


@cache
def all_rules() -> dict[str, Rule]:
    """Every rule by its code, in the order of the codes: also those about other files, and about what a trace saw.

    Example:
        >>> all_rules()["TR055"].code
        'TR055'
    """
    found = [*python_rules().values(), *text_rules().values(), AT_RUN_TIME]
    return {rule.code: rule for rule in sorted(found, key=lambda rule: rule.code)}


def rule_of(code: str) -> Rule:
    """The rule of a code. Raises KeyError where there is none."""
    return all_rules()[code]


def _reduce_rule(rule: Rule) -> tuple[Callable[[str], Rule], tuple[str]]:
    return rule_of, (rule.code,)


copyreg.pickle(Rule, _reduce_rule)  # by its code: small, and the same object there


class Table:
    """Dispatch table: the functions of all families, by the nodes that they handle.

    Args:
        of: the families.

    Attributes:
        calls, references, methods, attributes, keywords, modules, strings: functions by what they look at.
        below: functions for all names below one, the longest first.
        drop_ins: rules and runtime names by the full names of what the runtime has with the same arguments.
        functions: those of them that are classes in torch and functions in the runtime.
        prefixes: functions for strings with a beginning.
        nodes: functions by the type of node.
        words: what the bytes of a file are searched for before it is parsed.
    """

    def __init__(self, of: tuple[Family, ...]) -> None:
        self.calls: dict[str, list[Handler]] = {}
        self.references: dict[str, list[Handler]] = {}
        self.methods: dict[str, list[Handler]] = {}
        self.attributes: dict[str, list[Handler]] = {}
        self.keywords: dict[str, list[Handler]] = {}
        self.modules: dict[str, list[Handler]] = {}
        self.strings: dict[str, list[Handler]] = {}
        self.nodes: dict[type[ast.AST], list[Handler]] = {}
        self.below: list[tuple[str, Handler]] = []
        self.prefixes: list[tuple[str, Handler]] = []
        kinds: dict[str, dict[Any, list[Handler]]] = {
            "call": self.calls, "reference": self.references, "method": self.methods, "attribute": self.attributes,
            "keyword": self.keywords, "module": self.modules, "string": self.strings, "node": self.nodes,
        }  # fmt: skip
        for family in of:
            for what, key, function in family.handlers:
                if what == "reference" and key.endswith(".*"):
                    self.below.append((key.removesuffix("*"), function))
                elif what == "string" and key.endswith("*"):
                    self.prefixes.append((key.removesuffix("*"), function))
                else:
                    kinds[what].setdefault(key, []).append(function)
        self.below.sort(key=lambda each: -len(each[0]))
        self.prefixes.sort(key=lambda each: -len(each[0]))
        self.drop_ins = {full: found for family in of for full, found in family.drop_ins.items()}
        self.functions = {full for family in of for full in family.functions}
        words = sorted({word for family in of for word in family.words}, key=lambda word: (-len(word), word))
        self.words = re.compile(b"|".join(map(re.escape, words)) or b"(?!)")

    @property
    def types(self) -> tuple[type[ast.AST], ...]:
        """The types of nodes that anyone asks about."""
        wanted: set[type[ast.AST]] = {*self.nodes, ast.Call, ast.Attribute, ast.Name}
        wanted |= {ast.Constant} if self.strings or self.prefixes else set()
        wanted |= {ast.Import, ast.ImportFrom} if self.modules else set()
        return tuple(sorted(wanted, key=lambda each: each.__name__))


@cache
def table() -> Table:
    """The table of all families."""
    return Table(families())

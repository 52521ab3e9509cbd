"""A family of rules: the rules of one file, and the functions that find their places in a tree.

Every file of `port.rules` makes one; `registry` collects them, `engine` calls their functions. Tests:
tests/port/test_port_rules.py.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from typing import Any

from toprope.port.file import File
from toprope.port.rule import Example, Kind, Rule
from toprope.port.runtime.stand_ins import refused

__all__ = ["Family", "report_not_called"]

AS_CLASS = "it is used as a class here, and stays CUDA's; torch.device is every device's"
NOT_CALLED = "the function is not called, and always true: write () behind it, and run the port again"


def report_not_called(file: File, rule: Rule, node: ast.expr) -> None:
    """Report a function that is taken for true or false itself; the first of a file, since the others are its like."""
    if not any(each.held_back == NOT_CALLED for each in file.findings):
        file.report(rule, node, held_back=NOT_CALLED)


NOT_ENTERED = "no `with` enters it here: what it shows or is compared with stays CUDA's"

Handler = Callable[[File, Any], bool | None]
"""Looks at one node. True says that the node and all in it is dealt with, and is not looked at again."""


class Family:
    """Rules that belong together, in one file of `toprope/port/rules`, and the functions that find their places.

    A function is registered by what it looks at, so that the walk over a file asks only those that are concerned:
    the full name of what is called (`call`) or named (`reference`), the name of a method (`method`) or attribute
    (`attribute`), of a keyword in any call (`keyword`), of an imported package (`module`), the exact text of a string
    (`string`), or the type of a node (`node`). Of several functions for one node those of `node` come first; the
    first that returns True ends it.

    Args:
        name: the file's name.
        title: what the rules are about.
        words: byte strings; every file with a place for this family has at least one of them. A file without any
            family's word is not parsed.
    """

    def __init__(self, name: str, title: str, words: Iterable[bytes] = ()) -> None:
        self.name = name
        self.title = title
        self.words = tuple(words)
        self.rules: list[Rule] = []
        self.handlers: list[tuple[str, Any, Handler]] = []
        self.drop_ins: dict[str, tuple[Rule, str]] = {}
        self.functions: set[str] = set()

    def rule(
        self,
        code: str,
        kind: Kind,
        title: str,
        *,
        why: str,
        source: str = "",
        examples: Iterable[Example] = (),
        hint: bool = False,
        once: bool = False,
    ) -> Rule:
        """Add a rule to the family."""
        why, source = " ".join(why.split()), " ".join(source.split())
        rule = Rule(code, kind, title, why, source, tuple(examples), self.name, hint, once)
        self.rules.append(rule)
        return rule

    def call(self, *names: str) -> Callable[[Handler], Handler]:
        """For calls of these full names, such as "torch.cuda.set_device", under whatever name the file has them."""
        return self._register("call", names)

    def reference(self, *names: str) -> Callable[[Handler], Handler]:
        """For these full names everywhere, called or not. One that ends in ".*" is for all names below it."""
        return self._register("reference", names)

    def method(self, *names: str) -> Callable[[Handler], Handler]:
        """For calls of a method of this name on whatever is not a module, such as "cuda" in `x.cuda()`."""
        return self._register("method", names)

    def attribute(self, *names: str) -> Callable[[Handler], Handler]:
        """For attributes of this name, such as "is_cuda" in `x.is_cuda`."""
        return self._register("attribute", names)

    def keyword(self, *names: str) -> Callable[[Handler], Handler]:
        """For keywords of this name in any call; the function is given the `ast.keyword`."""
        return self._register("keyword", names)

    def module(self, *names: str) -> Callable[[Handler], Handler]:
        """For imports of this package or anything in it; the function is given the Import or ImportFrom."""
        return self._register("module", names)

    def string(self, *texts: str) -> Callable[[Handler], Handler]:
        """For strings that are exactly this text, or begin with it where it ends in "*"."""
        return self._register("string", texts)

    def node(self, *types: type[ast.AST]) -> Callable[[Handler], Handler]:
        """For all nodes of these types: `ast.Compare`, `ast.IfExp`, ... Keep it cheap: it is asked often."""
        return self._register("node", types)

    def drop_in(
        self, rule: Rule, names: dict[str, str] | Iterable[str], below: str = "torch.cuda", *, function: bool = False
    ) -> None:
        """Register names that the runtime module has with the same arguments; only the module before them is rewritten.

        `torch.cuda.synchronize` becomes `portable.synchronize` everywhere. If the name itself was imported (`from
        torch.cuda import synchronize`), the import is rewritten and the uses of the name stay.

        Args:
            rule: what to report.
            names: the runtime's name by the full name, or names that are the same in both.
            below: where the names are, if `names` is no dictionary.
            function: torch has classes of these names and the runtime functions: in annotations, in isinstance and as
                bases the names stay.
        """
        table = names if isinstance(names, dict) else {f"{below}.{name}": name for name in names}
        self.drop_ins |= {full: (rule, name) for full, name in table.items()}
        self.functions |= set(table) if function else set()

        def handler(file: File, node: ast.expr) -> bool:
            parent = file.parent(node)
            called = parent if isinstance(parent, ast.Call) and parent.func is node else None
            name = table[file.dotted(node) or ""]
            if called is None and name[0].islower() and file.decides(node):
                report_not_called(file, rule, node)
            elif function and called is None:
                if isinstance(getattr(node, "ctx", None), ast.Load):
                    file.report(rule, node, held_back=AS_CLASS)
            elif function and not _is_entered(file, called):
                file.report(rule, node, held_back=NOT_ENTERED)
            elif not isinstance(node, ast.Name) or file.by_star(node):
                held = refused(name, called) if called is not None else ""
                file.report(rule, node, edits=file.replace(node, file.portable(name)), held_back=held)
            return True

        self._register("reference", table)(handler)

    def _register(self, what: str, keys: Iterable[Any]) -> Callable[[Handler], Handler]:
        def add(function: Handler) -> Handler:
            self.handlers.extend((what, key, function) for key in keys)
            return function

        return add


def _is_entered(file: File, call: ast.expr | None) -> bool:
    """Return whether a context may be entered: in a `with`, or where it is kept, handed on or returned.

    One that is a statement, alone or in a tuple, is only made or displayed, as at the end of a notebook's cell.
    """
    around = None if call is None else file.parent(call)
    while isinstance(around, ast.Tuple | ast.List | ast.Dict | ast.IfExp | ast.JoinedStr | ast.FormattedValue):
        around = file.parent(around)
    if isinstance(around, ast.Call):
        return not any(file.is_builtin(around.func, name) for name in ("print", "str", "repr", "type", "isinstance"))
    is_asked = isinstance(around, ast.Attribute) and around.attr != "__enter__"
    return not is_asked and not isinstance(around, ast.Expr | ast.Compare | ast.Subscript)

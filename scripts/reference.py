"""Write the reference: pages of the Python API from docstrings, and a page of the command line from its help.

    python scripts/reference.py            print the pages that differ from the sources; exit status 1 if there are any
    python scripts/reference.py --write    write them

docs/api has a page for each part with its public names: the `__all__` of the modules in PARTS. Signatures are those of
the sources, without decorators. Sections of docstrings ("Args:", "Raises:") become lists. docs/command_help.md has the
help of each command, 100 columns wide.

A public module is added to `PARTS`. Sections of docstrings are Google's; the part of a docstring from "Tests:" on is
for maintainers and left out. Everything else about the pages is free, but all of them change with it.
tests/project/test_reference.py fails where a page is old.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib
import inspect
import os
import re
import sys
import textwrap
from collections.abc import Iterator
from enum import Enum
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
COLUMNS = 100
PARTS = {
    "api_chips": ["toprope.chips"],
    "api_codes": ["toprope.codes"],
    "api_compat": ["toprope.compat"],
    "api_cores": ["toprope.cores", "toprope.cores.record", "toprope.cores.findings"],
    "api_device": ["toprope.device"],
    "api_errors": ["toprope.errors"],
    "api_flow": ["toprope.flow", "toprope.flow.service"],
    "api_functions": ["toprope.functions"],
    "api_images": ["toprope.images"],
    "api_port": ["toprope.port"],
    "api_settings": ["toprope.settings", "toprope.sizes"],
    "api_sim": ["toprope.sim", "toprope.sim.faults"],
    "api_tiers": ["toprope.tiers", "toprope.tiers.plan", "toprope.tiers.modes", "toprope.tiers.pages"],
}
"""The modules of each page of docs/api."""

_SECTION = re.compile(r"(Args|Attributes|Returns|Raises|Yields|Examples?|Sources?):")
_TITLES = {"Args": "Arguments", "Example": "Example", "Examples": "Examples"}
_ITEM = re.compile(r"(\*{0,2}[\w.]+(?:, \*{0,2}[\w.]+)*): (.*)", re.DOTALL)
_FOR_MAINTAINERS = re.compile(r"\s*\bTests:\s+tests/.*?(?=\n\n|\Z)", re.S)
"""The tests of a module, which its docstring names at its end."""

_HEAD = "<!-- Written by scripts/reference.py: change the docstring, not this page. -->"


def main(arguments: list[str]) -> int:
    """Compare or write the pages; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the pages")
    options = parser.parse_args(arguments)
    differ = False
    for path, text in pages().items():
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        if old == text:
            continue
        differ = True
        name = path.relative_to(ROOT)
        if options.write:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        else:
            sys.stdout.writelines(difflib.unified_diff(old.splitlines(True), text.splitlines(True), f"{name}", "now"))
    return int(differ and not options.write)


def pages() -> dict[Path, str]:
    """Every page of the reference."""
    made = {DOCS / "api" / f"{name}.md": api_page(modules) for name, modules in PARTS.items()}
    return {DOCS / "api" / "index.md": index_page(), **made, DOCS / "command_help.md": cli_page()}


def index_page() -> str:
    """The list of the pages of the API, with all names."""
    lines = ["# Python API", "", _HEAD, "", "The public names of each part, from their docstrings.", ""]
    lines += ["| part | | names |", "| --- | --- | --- |"]
    for page, modules in PARTS.items():
        for name in modules:
            module = importlib.import_module(name)
            summary = _summary(module).replace("|", "\\|")
            names = ", ".join(f"`{each}`" for each in _exported(module))
            lines.append(f"| [`{name}`]({page}.md#{_anchor(name)}) | {summary} | {names} |")
    return "\n".join(lines) + "\n"


def api_page(modules: list[str]) -> str:
    """The names of a few modules with their signatures and docstrings."""
    lines = [f"# {modules[0]}", "", _HEAD, ""]
    for name in modules:
        module = importlib.import_module(name)
        level = "##" if name == modules[0] else "###"
        if name != modules[0]:
            lines += [f"## {name}", ""]
        lines += [f'<a id="{_anchor(name)}"></a>', "", *prose(inspect.getdoc(module) or ""), ""]
        for each in _exported(module):
            lines += [f"{level} {each}", "", *_entry(module, each), ""]
        if missing := ", ".join(f"`{each}`" for each in module.__all__ if _is_placeholder(module, each)):
            lines += [f"Names that can be imported, and whose use raises NotImplementedError: {missing}.", ""]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def _exported(module: ModuleType) -> list[str]:
    return [name for name in module.__all__ if not name.startswith("_") and not _is_placeholder(module, name)]


def _is_placeholder(module: ModuleType, name: str) -> bool:
    return type(getattr(module, name)).__name__ == "Unavailable"


def _anchor(name: str) -> str:
    return name.replace(".", "-")


def _entry(module: ModuleType, name: str) -> Iterator[str]:
    """Yield the Markdown of one public name: a class, a function, a module, a constant."""
    found = getattr(module, name)
    own = getattr(found, "__name__", name)
    if own != name and getattr(module, own, None) is found:
        yield f"Another name of [{own}](#{own.lower()})."
    elif inspect.isclass(found):
        yield from _class(name, found)
    elif inspect.isfunction(found := inspect.unwrap(found)):  # a cache of a function is one too
        yield from _fenced(f"{name}{_signature(_node(found))}")
        yield from prose(inspect.getdoc(found) or "")
    elif inspect.ismodule(found):
        yield f"The module `{found.__name__}`. {_summary(found)}"
    else:
        yield from _fenced(_shortened(f"{name} = {_plain(found)}"))
        if type(found).__module__.startswith("toprope") and not isinstance(found, Enum):
            yield _summary(found)
        else:
            yield from prose(_comment(module, name))


def _summary(found: object) -> str:
    return _inline((inspect.getdoc(found) or "").partition("\n")[0])


def _plain(value: object) -> str:
    return str(value) if isinstance(value, Enum) else re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _shortened(text: str) -> str:
    return text if len(text) <= COLUMNS else text[: COLUMNS - 4] + " ..."


def _fenced(code: str) -> Iterator[str]:
    yield from ("```python", *code.splitlines(), "```", "")


@cache
def _node(found: Any) -> ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef:
    node = ast.parse(textwrap.dedent(inspect.getsource(found))).body[0]
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    return node


def _signature(node: ast.AST, bound: bool = False) -> str:
    """Arguments and result of a function, over several lines where they are long; without self where it is bound."""
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    arguments = _arguments(node.args)[int(bound) :]
    end = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    line = f"({', '.join(arguments)}){end}"
    return line if len(line) <= COLUMNS - 20 else "(\n" + "".join(f"    {each},\n" for each in arguments) + f"){end}"


def _arguments(node: ast.arguments) -> list[str]:
    """Each argument with its annotation and default, and the marks `/` and `*`."""
    positional = [*node.posonlyargs, *node.args]
    defaults = [*[None] * (len(positional) - len(node.defaults)), *node.defaults]
    parts = [_argument(each, default) for each, default in zip(positional, defaults, strict=True)]
    if node.posonlyargs:
        parts.insert(len(node.posonlyargs), "/")
    if node.vararg:
        parts.append(f"*{_argument(node.vararg, None)}")
    elif node.kwonlyargs:
        parts.append("*")
    parts += [_argument(each, default) for each, default in zip(node.kwonlyargs, node.kw_defaults, strict=True)]
    return [*parts, f"**{_argument(node.kwarg, None)}"] if node.kwarg else parts


def _argument(node: ast.arg, default: ast.expr | None) -> str:
    if node.annotation is None:
        return node.arg if default is None else f"{node.arg}={ast.unparse(default)}"
    return f"{node.arg}: {ast.unparse(node.annotation)}" + (f" = {ast.unparse(default)}" if default else "")


def _class(name: str, found: type) -> Iterator[str]:
    """Yield the Markdown of a class: constructor, docstring, members."""
    node = _node(found)
    assert isinstance(node, ast.ClassDef)
    bases = [base.__name__ for base in found.__bases__ if base is not object]
    if issubclass(found, Enum):
        yield from _fenced(f"class {name}({', '.join(bases)})")
    elif issubclass(found, Exception):
        yield from _fenced(f"exception {name}({', '.join(bases)})")
    else:
        yield from _fenced(f"class {name}{_constructor(found, node)}")
    yield from prose(_own_text(found))
    yield ""
    for signature, text in _members(found):
        described = list(prose(text))
        first = described[0] if described else ""
        yield f"- `{signature}`" + (f": {first}" if first else "")
        yield from (f"    {line}" if line else "" for line in described[1:])
    yield ""


def _own_text(found: type) -> str:
    return inspect.cleandoc(vars(found).get("__doc__") or "")


def _constructor(found: type, node: ast.ClassDef) -> str:
    """The arguments that make an object: fields of a dataclass or a named tuple, else those of __init__."""
    if "Made by" in _own_text(found):
        return ""
    own = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
    if own:
        made = _signature(own[0], bound=True)
        return made.removesuffix(" -> None")
    if hasattr(found, "__dataclass_fields__") or issubclass(found, tuple):
        fields = [
            each for each in node.body
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
            and not each.target.id.startswith("_") and not ast.unparse(each.annotation).startswith("ClassVar")
        ]  # fmt: skip
        if not fields:
            return ""
        named = [(f"{ast.unparse(each.target)}: {ast.unparse(each.annotation)}", each.value) for each in fields]
        written = [f"{name}{_default(value)}" for name, value in named]
        line = ", ".join(written)
        return f"({line})" if len(line) <= COLUMNS - 20 else "(\n" + "".join(f"    {each},\n" for each in written) + ")"
    return ""


def _default(value: ast.expr | None) -> str:
    if value is None:
        return ""
    if isinstance(value, ast.Call) and ast.unparse(value.func).endswith("field"):
        given = {each.arg: ast.unparse(each.value) for each in value.keywords}
        return f" = {given['default']}" if "default" in given else " = ..." if "default_factory" in given else ""
    return f" = {ast.unparse(value)}"


def _members(found: type) -> Iterator[tuple[str, str]]:
    """Methods, properties and described attributes of a class and of its bases here, each with its docstring."""
    seen: set[str] = set()
    for base in found.__mro__:
        if not base.__module__.startswith("toprope") or (issubclass(base, Exception) and base is not found):
            continue
        node = _node(base)
        for place, each in enumerate(node.body):
            following = node.body[place + 1] if place + 1 < len(node.body) else None
            for name, signature, text in _member(each, following, issubclass(found, Enum)):
                if name not in seen and not name.startswith("_"):
                    seen.add(name)
                    yield signature, text


def _member(each: ast.stmt, following: ast.stmt | None, listed: bool) -> Iterator[tuple[str, str, str]]:
    """Name, signature and docstring of a statement of a class, where it has one; all constants of an Enum."""
    if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
        text = ast.get_docstring(each)
        marks = [ast.unparse(mark) for mark in each.decorator_list]
        if text and not any(mark.endswith(".setter") or mark == "overload" for mark in marks):
            signature = ""
            if not any(mark.endswith("property") for mark in marks):
                lines = _signature(each, bound="staticmethod" not in marks).replace(",\n)", ")").replace("(\n", "(")
                signature = " ".join(lines.split()).replace("( ", "(")
            yield each.name, each.name + signature, text
    elif isinstance(each, ast.Assign | ast.AnnAssign):
        target = each.target if isinstance(each, ast.AnnAssign) else each.targets[0]
        text = _text(following)
        if isinstance(target, ast.Name) and (text or listed):
            value = f" = {ast.unparse(each.value)}" if listed and each.value is not None else ""
            yield target.id, f"{target.id}{value}", text


def _text(statement: ast.stmt | None) -> str:
    """The docstring below an assignment."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return inspect.cleandoc(str(statement.value.value))
    return ""


def _comment(module: ModuleType, name: str) -> str:
    """The docstring below a constant, in the module or in the one that it is taken from."""
    tree = ast.parse(inspect.getsource(module))
    for place, each in enumerate(tree.body):
        if isinstance(each, ast.Assign | ast.AnnAssign):
            target = each.target if isinstance(each, ast.AnnAssign) else each.targets[0]
            if isinstance(target, ast.Name) and target.id == name:
                return _text(tree.body[place + 1] if place + 1 < len(tree.body) else None)
        if isinstance(each, ast.ImportFrom | ast.If):
            for taken in ast.walk(each):
                if isinstance(taken, ast.ImportFrom) and any(alias.name == name for alias in taken.names):
                    return _comment(importlib.import_module(str(taken.module)), name)
    return ""


def prose(text: str) -> list[str]:
    """A docstring as lines of Markdown."""
    text = _FOR_MAINTAINERS.sub("", text)
    lines: list[str] = []
    section = ""
    block: list[str] = []

    def flush() -> None:
        body = textwrap.dedent("\n".join(block)).strip("\n")
        block.clear()
        if not body:
            return
        if section in ("Example", "Examples") or body.startswith(">>>"):
            lines.extend(["```python", *body.splitlines(), "```", ""])
        elif section in ("Args", "Attributes", "Raises"):
            for item in re.split(r"\n(?=\S)", body):
                name = _ITEM.fullmatch(item)
                joined = " ".join((name[2] if name else item).split())
                lines.append(f"- `{name[1]}`: {_inline(joined)}" if name else f"- {_inline(joined)}")
            lines.append("")
        else:
            lines.extend([*_paragraphs(body), ""])

    for line in text.splitlines():
        head = _SECTION.fullmatch(line)
        if head:
            flush()
            section = head[1]
            lines += [f"{_TITLES.get(section, section)}:", ""]
        elif section and line and not line.startswith(" "):
            flush()
            section = ""
            block.append(line)
        else:
            block.append(line)
    flush()
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _paragraphs(body: str) -> Iterator[str]:
    """Text with its code, the lines that are indented by four, as it is; a blank line before code and lists."""
    before = ""
    for line in body.splitlines():
        code = line.startswith("    ") and (not before.strip() or before.startswith("    "))
        listed = line.startswith("- ") and before.strip() and not before.startswith(("- ", "  "))
        if listed:
            yield ""
        yield line if code else _inline(line)
        before = line


def _inline(text: str) -> str:
    """Prose as Markdown: what has a meaning there is escaped, but for `code`."""
    parts = text.split("`")
    parts[::2] = [
        re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", part.replace("*", "\\*").replace("<", "&lt;").replace("[", "\\["))
        for part in parts[::2]
    ]
    return "`".join(parts)


def cli_page() -> str:
    """The help of each command."""
    os.environ["TOPROPE_LANG"] = "en"
    import typer.main

    from toprope.cli import app

    command: Any = typer.main.get_command(app.app)
    lines = ["# Help of every command", "", _HEAD.replace("docstring", "help"), ""]
    lines += ["The help of each command, as `--help` prints it. More of [the command line](commands.md).", ""]
    for path, text in _helps(command, None, "toprope"):
        lines += [f"## {path}", "", "```text", *(line.rstrip() for line in text.splitlines()), "```", ""]
    return "\n".join(lines).rstrip() + "\n"


def _helps(command: Any, parent: Any, name: str) -> Iterator[tuple[str, str]]:
    context = command.make_context(
        name, [], parent=parent, resilient_parsing=True, terminal_width=COLUMNS, max_content_width=COLUMNS
    )
    yield context.command_path, context.get_help()
    if hasattr(command, "list_commands"):
        for each in command.list_commands(context):
            yield from _helps(command.get_command(context, each), context, each)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

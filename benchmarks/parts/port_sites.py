"""Find places of Python programs that name CUDA or a library for it, without the rules of `toprope.port`.

It is the independent measure of the port: places that it finds and the port does not are missed ones. Two scans are
joined: names, strings and imports in the syntax tree that hold one of a few words; and numbers and pinned memory in the
arguments of calls. Left out are comments, docstrings, texts of several words unless they are compared, addresses, names
that the program gives itself, and the uses of what an import of another library gave: the import is the place. It finds
more than there is to port, on purpose: `benchmarks/data` has a reader's verdict on its places.

Used by `parts.port_corpus` and `parts.port_oracle`. It shares no code with `toprope.port`, and must not.

Tests: tests/port/test_port_corpus.py.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

__all__ = ["Site", "own_names", "sites"]

WORDS = re.compile(
    r"cuda|nccl|cudnn|cublas|nvtx|nvcc|nvml|nvidia|gputil|gpustat|flash_?attn|flash_attention|xformers|\bapex\b|\bamp_C\b"
    r"|bitsandbytes|\btriton\b|cupy|tensorrt|causal_conv1d|selective_scan|mamba_ssm|deep_gemm|flashinfer|numba",
    re.IGNORECASE,
)
_ALWAYS = {"cuda"}
"""Methods that are torch's where they are called, although a program may have some of the same name."""
_PROSE = re.compile(r"\s|://")
"""Texts for a person, and addresses: they stay as they are."""


@dataclass(frozen=True)
class Site:
    """A place. Lines and columns are the tree's, columns in bytes; `kind` says which scan found it."""

    line: int
    column: int
    end_line: int
    end_column: int
    kind: str
    text: str


def own_names(texts: Iterable[str]) -> frozenset[str]:
    """Names with a word in them that programs give themselves: they need no port, what they stand for may."""
    found: set[str] = set()
    for text in texts:
        for node in ast.walk(_tree(text)):
            match node:
                case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                    found.add(name)
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    found.add(name)
                case ast.arg(arg=name):
                    found.add(name)
                case ast.Call(func=ast.Attribute(attr="add_argument"), args=[*given]):
                    flags = [each.value for each in given if isinstance(each, ast.Constant)]
                    found |= {str(flag).lstrip("-").replace("-", "_") for flag in flags}
    return frozenset(name for name in found if WORDS.search(name))


def sites(text: str, own: frozenset[str] = frozenset()) -> list[Site]:
    """The places of a file, in their order.

    Args:
        text: the file.
        own: from `own_names`, for all files of the program.

    Raises:
        SyntaxError: it is no Python of this version.
    """
    tree = _tree(text)
    imported = dict(_imports(tree))
    found = [site for site in _walk(tree, own, imported) if site is not None]
    return sorted(set(found), key=lambda site: (site.line, site.column, site.end_line, site.end_column))


def _tree(text: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Names that imports bind, and the package that each is from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.asname or alias.name.partition(".")[0], alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, "." if node.level else (node.module or "").partition(".")[0]


def _site(node: ast.AST, kind: str, text: str) -> Site:
    return Site(node.lineno, node.col_offset, node.end_lineno, node.end_col_offset, kind, text)  # type: ignore[attr-defined]


def _walk(tree: ast.Module, own: frozenset[str], imported: dict[str, str]) -> Iterator[Site | None]:
    """Walk the tree, and yield each place; a name's parts are one place, found at its outermost node."""
    waiting: list[ast.AST] = [tree]
    compared: set[ast.AST] = set()
    called: set[ast.AST] = set()
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # a docstring
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _ALWAYS:
            called.add(node.func)
        if isinstance(node, ast.Attribute | ast.Name):
            parts, root = _chain(node)
            yield _named(node, parts, root, own - _ALWAYS if node in called else own, imported)
            if root is not None and not isinstance(root, ast.Name):
                waiting.append(root)
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield _import(node, own)
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and WORDS.search(node.value):
            if not _PROSE.search(node.value) or node in compared or "nvidia-smi" in node.value:
                yield _site(node, "text", node.value)
        elif isinstance(node, ast.Compare):
            compared |= {node.left, *node.comparators}
        if isinstance(node, ast.Call):
            yield from _arguments(node, own)
        waiting += ast.iter_child_nodes(node)


def _chain(node: ast.expr) -> tuple[list[str], ast.expr | None]:
    """The names of `a.b.c`, and the expression before them; the first name is one of them."""
    parts = []
    at: ast.expr = node
    while isinstance(at, ast.Attribute):
        parts.append(at.attr)
        at = at.value
    if isinstance(at, ast.Name):
        parts.append(at.id)
    return parts[::-1], at


def _named(
    node: ast.expr, parts: list[str], root: ast.expr | None, own: frozenset[str], imported: dict[str, str]
) -> Site | None:
    """The place of a dotted name that holds one of the words, unless it is the program's or another package's."""
    named = [part for part in parts if WORDS.search(part)]
    package = imported.get(root.id) if isinstance(root, ast.Name) else None
    if package == "torch":
        own = frozenset()
    elif package is not None:
        return None  # the import is the place, if it is one
    if all(part in own for part in named):
        return None
    # only the names, not what they are asked of: `f(x).cuda` begins at `.cuda`
    if root is None or isinstance(root, ast.Name):
        return _site(node, "name", ".".join(parts))
    return Site(
        root.end_lineno or 0, root.end_col_offset or 0, node.end_lineno or 0, node.end_col_offset or 0, "name",
        "." + ".".join(parts),
    )  # fmt: skip


def _import(node: ast.Import | ast.ImportFrom, own: frozenset[str]) -> Site | None:
    if isinstance(node, ast.ImportFrom) and node.level:
        return None
    module = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
    names = [*module, *(alias.name for alias in node.names)]
    if not any(WORDS.search(name) and name not in own for name in names):
        return None
    return _site(node, "import", ast.unparse(node))


def _arguments(call: ast.Call, own: frozenset[str]) -> Iterator[Site]:
    """Yield places in the arguments of a call: device numbers, pinned memory, names with a word."""
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if method == "to" and call.args and _is_number(call.args[0]):
        yield _site(call.args[0], "number", "to")
    if method == "pin_memory" and not call.args:
        yield _site(call, "pinned", method)
    for keyword in call.keywords:
        name = keyword.arg or ""
        if name in ("device", "map_location", "device_map") and _is_number(keyword.value):
            yield _site(keyword, "number", name)
        elif name == "pin_memory" and not (isinstance(keyword.value, ast.Constant) and not keyword.value.value):
            yield _site(keyword, "pinned", name)
        elif WORDS.search(name) and name not in own:
            yield _site(keyword, "argument", name)


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int

"""The published wheel: where it is, and the signatures in its Python files. Nothing of it is ever imported.

Called by `report`, and by tests/helpers/published_wheel.py, which finds the wheel for other tests. Fixed by the wheel:
its paths, `__all__` and version.py; the descriptions must have the form of `here`, so that the two can be compared.
Tests: tests/compat/test_compat_torch_npu.py.
"""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["Published", "Unreadable", "find"]

PACKAGE = "torch_npu.npu"

Parameter = tuple[str, str, str | None]
"""Name, kind and default (as its repr) of a parameter."""


class Unreadable(Exception):  # noqa: N818 - not an error of the program: the caller goes without
    """The wheel cannot be had; the text says why."""


def find(corpus: str, minor: str, download_to: Path, seconds: float) -> Path:
    """A wheel of torch-npu, or the folder it lies unpacked in.

    Args:
        corpus: a folder with it, "" for none.
        minor: the version without its last part, such as "2.13".
        download_to: where pip puts it, and where an earlier download lies.
        seconds: the time pip may take.

    Raises:
        Unreadable: there is none.
    """
    pattern = f"torch_npu-{minor}.*.whl"
    if corpus:
        folder = Path(corpus)
        for unpacked in (folder, *folder.glob("*/")):
            if (unpacked / "torch_npu" / "npu" / "__init__.py").is_file():
                return unpacked
        for wheel in sorted(folder.glob(f"**/{pattern}")):
            return wheel
        raise Unreadable(f"{corpus} holds neither {pattern} nor an unpacked torch_npu")
    for wheel in sorted(download_to.glob(pattern)):
        return wheel
    with tempfile.TemporaryDirectory(dir=download_to) as arriving:  # others look for a whole one meanwhile
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest"]
        command += [arriving, f"torch-npu=={minor}.*"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
        except subprocess.TimeoutExpired:
            raise Unreadable(f"torch-npu {minor} did not arrive within {seconds:.0f} s") from None
        if done.returncode != 0:
            raise Unreadable(f"pip has no torch-npu {minor}: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
        wheel = next(Path(arriving).glob(pattern))
        return wheel.replace(download_to / wheel.name)


class Published:
    """The names of the wheel's `torch_npu.npu`."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._tree = functools.cache(self._parse)

    @property
    def version(self) -> str:
        """The wheel's version, such as "2.13.0"."""
        text = self._text("torch_npu/version.py") or ""
        for statement in ast.parse(text).body:
            if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__version__":
                return str(ast.literal_eval(statement.value))
        raise Unreadable(f"{self._place} has no torch_npu/version.py that names a version")

    def all_names(self) -> list[str]:
        """`__all__` of torch_npu.npu."""
        names = self._all(PACKAGE)
        assert names is not None, "torch_npu/npu/__init__.py has no __all__"
        return names

    def describe(self, name: str) -> dict[str, Any] | None:
        """Describe a name such as "utils.get_cann_version": its kind, signature, members; None for no such name."""
        module, parts = PACKAGE, name.split(".")
        while len(parts) > 1 and self._tree(f"{module}.{parts[0]}") is not None:
            module = f"{module}.{parts.pop(0)}"
        node = self._find(module, parts[0])
        if node is None:
            return {"kind": "module"} if self._tree(f"{module}.{parts[0]}") is not None else None
        described = _describe(node)
        return described["members"].get(parts[1]) if len(parts) > 1 else described

    def _text(self, path: str) -> str | None:
        if self._place.is_dir():
            file = self._place / path
            return file.read_text(encoding="utf-8") if file.is_file() else None
        with zipfile.ZipFile(self._place) as wheel:
            return wheel.read(path).decode() if path in wheel.namelist() else None

    def _parse(self, module: str) -> ast.Module | None:
        base = module.replace(".", "/")
        text = self._text(f"{base}.py")
        if text is None:
            text = self._text(f"{base}/__init__.py")
        return None if text is None else ast.parse(text)

    def _is_package(self, module: str) -> bool:
        return self._text(f"{module.replace('.', '/')}/__init__.py") is not None

    def _all(self, module: str) -> list[str] | None:
        tree = self._tree(module)
        for statement in tree.body if tree else ():
            if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
                return list(ast.literal_eval(statement.value))
        return None

    def _exports(self, module: str, name: str) -> bool:
        """True if `from module import *` could bring the name."""
        names = self._all(module)
        return not name.startswith("_") if names is None else name in names

    def _find(self, module: str, name: str) -> ast.AST | None:
        """Find the definition that a name of a module is bound to last, anywhere inside the wheel."""
        tree = self._tree(module)
        for statement in reversed(tree.body if tree else []):
            found = self._bound(module, statement, name)
            if found is not None:
                return found
        return None

    def _bound(self, module: str, statement: ast.stmt, name: str) -> ast.AST | None:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef) and statement.name == name:
            return statement
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                return self._value(module, statement.value) or statement
        if isinstance(statement, ast.ImportFrom):
            source = self._source(module, statement)
            for alias in statement.names:
                if (alias.asname or alias.name) == name:
                    return self._find(source, alias.name)
                if alias.name == "*" and self._exports(source, name):
                    found = self._find(source, name)
                    if found is not None:
                        return found
        return None

    def _value(self, module: str, value: ast.expr | None) -> ast.AST | None:
        """The class behind `name = other_module.Class`."""
        if isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name):
            return self._find(f"{module}.{value.value.id}", value.attr)
        return None

    def _source(self, module: str, statement: ast.ImportFrom) -> str:
        if not statement.level:
            return statement.module or ""
        parts = module.split(".")
        away = statement.level - (1 if self._is_package(module) else 0)
        base = ".".join(parts[: len(parts) - away])
        return f"{base}.{statement.module}" if statement.module else base


def _describe(node: ast.AST) -> dict[str, Any]:
    if isinstance(node, ast.FunctionDef):
        return {"kind": "function", "signature": _signature(node.args), "members": {}}
    if not isinstance(node, ast.ClassDef):
        return {"kind": "object", "members": {}}
    described: dict[str, Any] = {"kind": "class", "members": dict(_members(node))}
    if any(ast.unparse(base).endswith("Enum") for base in node.bases):
        described["constants"] = {
            ast.unparse(each.targets[0]): ast.literal_eval(each.value)
            for each in node.body
            if isinstance(each, ast.Assign)
        }
    for each in node.body:
        if isinstance(each, ast.FunctionDef) and each.name in ("__new__", "__init__"):
            described["signature"] = _signature(each.args)[1:]
    return described


def _members(node: ast.ClassDef) -> Iterator[tuple[str, dict[str, Any]]]:
    for each in node.body:
        if isinstance(each, ast.FunctionDef) and not each.name.startswith("_"):
            decorators = [ast.unparse(decorator) for decorator in each.decorator_list]
            if "property" in decorators:
                yield each.name, {"kind": "property"}
                continue
            kind = next((name for name in ("staticmethod", "classmethod") if name in decorators), "method")
            signature = _signature(each.args)
            yield each.name, {"kind": kind, "signature": signature if kind == "staticmethod" else signature[1:]}


def _signature(arguments: ast.arguments) -> list[Parameter]:
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(plain) - len(arguments.defaults)) + [_shown(each) for each in arguments.defaults]
    kinds = ["positional only"] * len(arguments.posonlyargs) + ["positional or keyword"] * len(arguments.args)
    found = [(each.arg, kind, default) for each, kind, default in zip(plain, kinds, defaults, strict=True)]
    if arguments.vararg:
        found.append((arguments.vararg.arg, "variadic positional", None))
    for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        found.append((each.arg, "keyword-only", None if default is None else _shown(default)))
    if arguments.kwarg:
        found.append((arguments.kwarg.arg, "variadic keyword", None))
    return found


def _shown(default: ast.expr) -> str:
    """A default as Python shows its value; sums of numbers are worked out, names stay as they are written."""
    if all(isinstance(each, _CONSTANT) for each in ast.walk(default)):
        return repr(eval(compile(ast.Expression(default), "<default>", "eval"), {"__builtins__": {}}))
    return ast.unparse(default)


_CONSTANT = (ast.Constant, ast.UnaryOp, ast.BinOp, ast.operator, ast.unaryop, ast.Tuple, ast.List, ast.Dict, ast.Load)

"""Write src/toprope/support/vendor_names.toml: names of the packages that toprope has facades of, from their sources.

    python scripts/vendor_names.py FOLDER

FOLDER holds clones of the repositories (bare ones are enough), each in a folder named after the last part of its
repository: `torchair`, `pytorch`, `yuanrong`, `ge`. They are read with git, and nothing in them is imported.

A module is listed if the documents or examples name it and no part of its name begins with "_". Its names are those
of `__all__`, else what it defines and what a package's `__init__` imports from its own package; those that have a
heading or a page of their own in the documents are added.

Run by hand for new releases. Errors about a missing name look the table up (`compat.missing`). Folders and the form of
the documents are the vendor's; what is no name although it looks like one is a row of `NO_NAMES`.
tests/compat/test_vendor_names.py holds the reader on a small repository, and compares the facades with the table.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

TARGET = Path(__file__).resolve().parents[1] / "src" / "toprope" / "support" / "vendor_names.toml"
# Foreign name: repository, and the folder of the package in it.
PACKAGES = {
    "dataflow": ("hicann/ge", "dflow/pydflow/python/dataflow"),
    "torch_npu": ("Ascend/pytorch", "torch_npu"),
    "torchair": ("Ascend/torchair", "python/torchair"),
    "yr": ("openeuler-mirror/yuanrong", "api/python/yr"),
}
TEXTS = ("*.md", "*.rst", "*.ipynb", "example*/*.py")
# What looks like an attribute in a text and is none: ends of file names, and helpers of errors.
NO_NAMES = {"cfg", "h", "html", "ini", "json", "log", "md", "pbtxt", "png", "py", "rst", "so", "txt", "yaml"}
NO_NAMES |= {"ErrCode", "dist_error", "prof_error", "pta_error"}


class Repository:
    """A clone, read with git."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def git(self, *arguments: str) -> str:
        """Return what a git command prints."""
        done = subprocess.run(["git", *arguments], cwd=self._folder, capture_output=True, check=True)
        return done.stdout.decode("utf-8", errors="replace")

    def files(self) -> list[str]:
        """Return the paths of all files."""
        return self.git("ls-tree", "-r", "-z", "--name-only", "HEAD").split("\0")

    def lines(self, pattern: str, paths: list[str]) -> str:
        """Return the lines of files that match a pattern; "" where none does."""
        done = subprocess.run(
            ["git", "grep", "-h", "-I", "-E", pattern, "HEAD", "--", *paths],
            cwd=self._folder, capture_output=True, check=False,
        )  # fmt: skip
        return done.stdout.decode("utf-8", errors="replace")

    def text(self, path: str) -> str:
        """Return a file's text."""
        return self.git("show", f"HEAD:{path}")


def names_of(package: str, repository: Repository, folder: str) -> dict[str, list[str]]:
    """Return the public names of the modules of a package.

    Args:
        package: its foreign name.
        repository: the vendor's.
        folder: of the package in the repository.
    """
    sources = {}
    for path in repository.files():
        if path.startswith(f"{folder}/") and path.endswith(".py"):
            parts = [package, *path.removeprefix(f"{folder}/").removesuffix(".py").split("/")]
            module = ".".join(parts).removesuffix(".__init__")
            if not any(part.startswith("_") or part in ("cli", "testing", "tests") for part in module.split(".")):
                sources[module] = path
    written = repository.lines(rf"\b{package}\b", [*TEXTS, f":!{folder}/*"]).replace("\\_", "_")
    used = {path for line in written.splitlines() for path in _paths(package, line)}
    # a document may call the package by the name that it imports it as: `import torchair as tng`
    for alias in {*re.findall(rf"import {package} as (\w+)", written)}:
        lines = repository.lines(rf"\b{alias}\.", [*TEXTS]).splitlines()
        used |= {path for line in lines for path in _paths(alias, line, package)}
    headings = [line for line in written.splitlines() if line.startswith("#")]
    headings += [Path(path).stem for path in repository.files() if Path(path).name.startswith(f"{package}.")]
    described = {path for line in headings for path in _paths(package, line)}
    listed = {module for module in sources if module == package or any(_is_in(path, module) for path in used)}
    for module in [*listed]:  # and the packages that it is in
        parts = module.split(".")
        listed |= {".".join(parts[:length]) for length in range(1, len(parts))} & sources.keys()
    found = {}
    for module in sorted(listed):
        inside = (path.removeprefix(f"{module}.") for path in described if path.startswith(f"{module}."))
        is_package = sources[module].endswith("__init__.py")
        names = {*_defined(ast.parse(repository.text(sources[module])), package if is_package else "")}
        names |= {path.partition(".")[0] for path in inside}
        found[module] = sorted(
            name
            for name in names
            if not name.startswith("_") and name not in NO_NAMES and f"{module}.{name}" not in sources
        )
    return found


def _is_in(path: str, module: str) -> bool:
    return path == module or path.startswith(f"{module}.")


def _paths(name: str, line: str, package: str = "") -> Iterator[str]:
    """Yield the dotted names in a line that begin with a name, with the package in its place."""
    package = package or name
    for found in re.finditer(rf"(?<![\w./\\-]){name}((?:\.[A-Za-z]\w*)+)(?![\w/\\-])", line, re.ASCII):
        yield package + found[1]
    for found in re.finditer(rf"from {name}((?:\.\w+)*) import \(?([\w, ]+)", line):
        for each in found[2].split(","):
            if each.strip():
                yield f"{package}{found[1]}.{each.split()[0]}"


def _defined(tree: ast.Module, package: str) -> Iterator[str]:
    """Yield `__all__`, else what a module defines and what it imports from the package, if one is named."""
    exported = [*_exported(tree)]
    if exported:
        yield from exported
        return
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.ImportFrom) and package and (node.level or _is_in(node.module or "", package)):
            yield from (each.asname or each.name for each in node.names if each.name != "*")


def _exported(tree: ast.Module) -> Iterator[str]:
    """Yield the texts of `__all__` and of tables of names that are loaded when asked for (`_LAZY_EXPORTS`)."""
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            values = [node.value]
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):  # _LAZY_EXPORTS.update({...})
            call = node.value.func
            targets, values = [call.value] if isinstance(call, ast.Attribute) else [], node.value.args
        else:
            continue
        named = [each.id for each in targets if isinstance(each, ast.Name)]
        if any(each == "__all__" or each.endswith("_EXPORTS") for each in named):
            for value in values:
                yield from _texts(value)


def _texts(value: ast.expr) -> Iterator[str]:
    members = value.keys if isinstance(value, ast.Dict) else getattr(value, "elts", [])
    yield from (each.value for each in members if isinstance(each, ast.Constant) and isinstance(each.value, str))


def main(arguments: list[str]) -> int:
    """Write the file; return the exit status."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python scripts/vendor_names.py FOLDER\n")
        return 2
    parts = [
        "# Names of the packages that toprope has facades of. Written by scripts/vendor_names.py; do not edit.\n"
        "# What is not simulated, and why: tests/compat/vendor_missing.toml.\n"
    ]
    for package, (origin, folder) in PACKAGES.items():
        repository = Repository(Path(arguments[0]) / origin.partition("/")[2])
        commit, date = repository.git("log", "-1", "--format=%H %cs", "HEAD").split()
        parts.append(f'[{package}]\nsource = "{origin}, {date}"\ncommit = "{commit}"\n')
        modules = names_of(package, repository, folder)
        lines = [f"{json.dumps(module)} = {_table(names)}\n" for module, names in modules.items()]
        parts.append(f"[{package}.modules]\n" + "".join(lines))
    TARGET.write_text("\n".join(parts), encoding="utf-8")
    return 0


def _table(names: list[str]) -> str:
    """Write a list of texts as TOML, in lines of at most 120 characters."""
    lines, line = [], "   "
    for name in names:
        if len(line) + len(name) + 4 > 118:
            lines.append(line)
            line = "   "
        line += f' "{name}",'
    return "[]" if not names else "[\n" + "\n".join([*lines, line]) + "\n]"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

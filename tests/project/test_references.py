"""Files and modules that docstrings and comments refer to exist: a module that moves takes its references along.

Two kinds are held: paths in the texts of src and tests, and dotted names in backticks in the docstrings of modules
(`store.transfer`, `tiers.engine.attach`), which may leave out packages that the module itself is in.
"""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
FOLDERS = "toprope|tests|docs|scripts|benchmarks|examples|csrc"
PATHS = re.compile(rf"(?<![\w/.-])(?:src/)?(?:{FOLDERS})(?:/[\w.-]+)+\.(?:py|md|toml|json|cpp|h|inl)\b")
NAMES = re.compile(r"`([a-z_][a-z0-9_]*(?:\.\w+)+)`")
PACKAGES = sorted(each for each in (SOURCE / "toprope").iterdir() if each.is_dir())
OTHERS = {
    "toprope/cli/x.py": "any command",
    "docs/errors/NAME.md": "the page of any error",
    "scripts/run.py": "a user's program",
    "csrc/npu/Graph.cpp": "a file of torch_npu",
    "docs/zh/api_ref/comm_op_interface/HcclAllReduce.md": "a file of hicann/hccl",
}
"""Paths that are not meant to be of this repository, and what they are."""

READ = ("toprope.cores", "toprope.flow", "toprope.functions", "toprope.tiers")
"""Packages whose modules say who calls them; to be continued."""

OTHER_NAMES = {"toprope.strict": "an option of flow", "toprope.rest": "a key in checkpoints"}
"""Dotted names that begin like one of our modules, and what they are."""


def sources(*folders):
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*")) if path.is_file()]


def texts(path):
    """Line numbers and texts of a file's comments and docstrings; of other files than Python, all lines."""
    if path.suffix not in (".py", ".cpp", ".h", ".inl", ".toml"):
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    if path.suffix != ".py":
        return [(number, line) for number, line in enumerate(lines, 1) if line.lstrip().startswith(("//", "#"))]
    found = [(number, line) for number, line in enumerate(lines, 1) if line.lstrip().startswith("#")]
    for node in ast.walk(ast.parse("\n".join(lines))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node, clean=False)
            found += [(node.body[0].lineno, text)] if text else []
    return found


def exists(name, path):
    """True if a path in a text is that of a file, from the repository, from src or from a package."""
    near = [each for each in path.parents if ROOT in each.parents]
    return any((folder / name).exists() for folder in (ROOT, SOURCE, SOURCE / "toprope", *near, *PACKAGES))


def missing_paths(path):
    return [
        f"{path.relative_to(ROOT)}:{number}: {name}"
        for number, text in texts(path)
        for name in PATHS.findall(text)
        if name not in OTHERS and not exists(name, path)
    ]


@cache
def modules():
    found = {}
    for path in (SOURCE / "toprope").rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def defined(module):
    """Names that a module defines or imports, and the attributes of its classes."""
    names = set()
    for node in ast.walk(ast.parse(modules()[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
    return names


def resolves(name, package):
    """True if a dotted name is a module, or a name of one; None if its beginning is no module of ours."""
    known = modules()
    prefixes = [".".join(package.split(".")[:length]) for length in range(len(package.split(".")), 0, -1)]
    begun = False
    for full in (name, *(f"{prefix}.{name}" for prefix in prefixes)):
        parts = full.split(".")
        at = next((length for length in range(len(parts), 0, -1) if ".".join(parts[:length]) in known), 0)
        own = len(parts) - name.count(".") - 1
        if at <= own:
            continue
        begun = True
        module, rest = ".".join(parts[:at]), parts[at:]
        if not rest or set(rest) <= defined(module) | {each.rpartition(".")[2] for each in known}:
            return True
    return False if begun else None


def missing_names(module):
    path = modules()[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    names = [each for each in NAMES.findall(text) if each not in OTHER_NAMES and not each.startswith("torch_npu.")]
    return [f"{module}: `{each}`" for each in names if not each.endswith(".py") and resolves(each, package) is False]


def test_paths_in_docstrings_and_comments_exist():
    assert [each for path in sources("src", "tests") for each in missing_paths(path)] == []


def test_modules_that_docstrings_of_modules_name_exist():
    assert [each for module in modules() for each in missing_names(module)] == []


def test_modules_say_more_than_one_line():
    """After the first line: who calls the module, and what follows a change. That it is true is for its reviewers."""
    short = [
        module
        for module, path in modules().items()
        if module.startswith(READ) and "\n\n" not in (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "")
    ]
    assert short == []


def test_a_module_that_moved_is_found():
    here = Path(__file__)
    assert not exists("toprope/tiers/pages/native.py", here)
    assert exists("toprope/tiers/pages.py", here)
    assert resolves("store.transfer", "toprope.tiers.engine") is True
    assert resolves("store.transfers", "toprope.tiers.engine") is False
    assert resolves("store.transfer.Load", "toprope.tiers") is True
    assert resolves("torch.nn.Linear", "toprope.tiers") is None

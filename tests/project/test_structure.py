"""Packages with many modules have sub-packages, no name of a module is in five packages, and files name their tests."""

import ast
import re
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "toprope"
MOST = 16
"""Modules of a package, without its sub-packages."""

LARGE = {
    "cli": "a file for each verb",
    "port/rules": "a file for each family of rules",
    "sim/npu": "torch.npu, whose modules have torch_npu's names",
    "compat/torch_npu/operators": "a file for each kind of operator",
    "compat/torch_npu/contrib/module": "torch_npu's own files",
}
FOREIGN = ("compat/", "sim/npu/")
"""Folders whose modules have names of other packages."""


def modules():
    found = (path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))
    return [path for path in found if path.name != "__init__.py"]


def test_a_package_with_many_modules_has_sub_packages():
    counts = Counter(str(path.parent) for path in modules())
    assert {name for name, count in counts.items() if count > MOST} == LARGE.keys()


def test_no_name_of_a_module_is_in_five_packages():
    own = [path for path in modules() if not str(path).startswith(FOREIGN)]
    assert [stem for stem, count in Counter(path.stem for path in own).items() if count >= 5] == []


def head_of(path):
    """The docstring of a file, or the comment at its top; None where it has no code of its own."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return text[:2500]
    tree = ast.parse(text)
    code = [
        each for each in tree.body
        if not isinstance(each, ast.Import | ast.ImportFrom | ast.Expr) and "__all__" not in ast.unparse(each)
    ]  # fmt: skip
    return (ast.get_docstring(tree) or "") if code else None


def test_each_file_names_the_tests_that_hold_it():
    """Who changes a file must know what tells that it is broken; of ten strangers' files five said nothing of it."""
    root = PACKAGE.parents[1]
    files = [each for name in ("src/toprope", "scripts", "benchmarks") for each in (root / name).rglob("*")]
    heads = {each: head_of(each) for each in files if each.suffix in (".py", ".cpp", ".h", ".sh")}
    without = [
        each for each, head in heads.items() if head is not None and not re.search(r"\btests/\w|No test\b", head)
    ]
    assert [str(each.relative_to(root)) for each in without] == []

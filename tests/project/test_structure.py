"""Packages with many modules have sub-packages, and no name of a module occurs in five packages."""

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

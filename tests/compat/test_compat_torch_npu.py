"""Names and signatures of torch.npu compared with the published torch-npu wheel, which is parsed, never imported.

Holds src/toprope/sim/npu and docs/compat.md. Without the wheel these tests are skipped and say why; see
tests/helpers/published_wheel.py.
"""

import ast
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

import published_wheel
from torch_npu_names import BEGIN, END, Published, Unreadable, compare, find, renewed
from torch_npu_names.report import NAMES, report

ROOT = Path(__file__).resolve().parents[2]

PAGE = ROOT / "docs" / "compat.md"
GRADES = ("must", "should", "could")


published = pytest.fixture(published_wheel.names, scope="module")


@pytest.fixture(scope="module")
def reported(published):
    return report(published)


def test_the_names_are_graded_once():
    every = [name for grade in GRADES for name in NAMES[grade]]
    assert len(every) == len({*every}) > 160
    for grade in GRADES:
        assert sorted(NAMES[grade]) == NAMES[grade]


def test_what_is_said_of_names_is_said_of_names_there_are():
    known = {*NAMES["must"], *NAMES["should"]}
    assert {*NAMES["compiled"]} <= known
    assert {*NAMES["notes"]} <= known
    owners = {name.removesuffix("." + name.rpartition(".")[2]) for name in NAMES["name_only"]}
    assert {*NAMES["name_only"]} <= known or owners & known
    assert not {*NAMES["gone"]} & known


@pytest.mark.soak
def test_at_least_95_percent_agree(reported):
    _, found = reported
    assert found["all"].share >= 95
    assert found["must"].share >= 95
    assert len(found["all"].agree) > 130


@pytest.mark.soak
def test_every_difference_has_its_reason_and_no_reason_is_stale(reported):
    _, found = reported
    assert found["all"].differ.keys() == NAMES["differences"].keys()


@pytest.mark.slow
def test_every_name_was_read(reported):
    _, found = reported
    read = {*found["all"].agree, *found["all"].differ, *found["all"].unread}
    assert {*NAMES["must"], *NAMES["should"]} <= read
    assert sorted(found["all"].unread) == sorted(NAMES["compiled"])


@pytest.mark.slow
def test_what_the_compiled_part_makes_is_not_in_the_files(published):
    shown = {name: published.describe(name) for name in NAMES["compiled"]}
    storages = {"kind": "class", "members": {"dtype": {"kind": "method", "signature": []}}}  # the rest is torch's class
    assert {name: what for name, what in shown.items() if what not in (None, storages)} == {}
    assert {name for name, what in shown.items() if what == storages} == {n for n in shown if n.endswith("Storage")}


@pytest.mark.slow
def test_the_other_names_are_torch_npus_too(published):
    exported = {*published.all_names()}
    assert [name for name in NAMES["could"] if name not in exported and published.describe(name) is None] == []
    assert [name for name in NAMES["gone"] if name in exported or published.describe(name) is not None] == []
    assert exported - {name for grade in GRADES for name in NAMES[grade]} == set()


@pytest.mark.slow
def test_the_page_is_in_step(published, reported):
    if published.version != NAMES["version"]:
        pytest.skip(f"docs/compat.md is about torch-npu {NAMES['version']}, this is {published.version}")
    page = PAGE.read_text(encoding="utf-8")
    assert renewed(page, reported[0]) == page, f"write it anew: {BEGIN}"


def test_the_page_names_its_version():
    page = PAGE.read_text(encoding="utf-8")
    assert f"torch-npu {NAMES['version']}" in page
    assert page.index(BEGIN) < page.index(END)


# ---- the reader and the comparison themselves, on a wheel made here


FILES = {
    "torch_npu/version.py": "__version__ = '2.13.7'\n",
    "torch_npu/npu/__init__.py": """
__all__ = ["plain", "starred", "Thing", "setting", "Kind"]
from .inner import plain, once
from .open import *
from . import config
setting = config._Setting()
Kind = config._Kind
Limited = config.Limited
if True:
    hidden = 1
""",
    "torch_npu/npu/inner.py": """
def plain(a, /, b, c=2. ** 16, *rest, d, e=torch.float16, **more): ...
@guard
def once(device, cube_num=-1): ...
""",
    "torch_npu/npu/open.py": """
from torch_npu.npu.inner import plain as starred
class Thing(Base):
    def __new__(cls, device=None, **kwargs): ...
    @staticmethod
    def still(x=[1]): ...
    @property
    def number(self): ...
    def _hidden(self): ...
    def moved(self, *, to="here"): ...
""",
    "torch_npu/npu/config.py": """
class _Kind(IntEnum):
    FIRST = 0
    LAST = 1
class _Setting: ...
""",
    "torch_npu/npu/deep/__init__.py": "from ..inner import plain as far\nfrom .leaf import leaf\n",
    "torch_npu/npu/deep/leaf.py": "def leaf(): ...\n",
}


@pytest.fixture(params=["folder", "wheel"])
def small(request, tmp_path):
    if request.param == "folder":
        for path, text in FILES.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        return Published(tmp_path)
    place = tmp_path / "torch_npu-2.13.7-py3-none-any.whl"
    with zipfile.ZipFile(place, "w") as wheel:
        for path, text in FILES.items():
            wheel.writestr(path, text)
    return Published(place)


PLAIN = [
    ("a", "positional only", None),
    ("b", "positional or keyword", None),
    ("c", "positional or keyword", "65536.0"),
    ("rest", "variadic positional", None),
    ("d", "keyword-only", None),
    ("e", "keyword-only", "torch.float16"),
    ("more", "variadic keyword", None),
]


def test_signatures_are_read(small):
    assert small.version == "2.13.7"
    assert small.all_names() == ["plain", "starred", "Thing", "setting", "Kind"]
    for name in ("plain", "starred", "inner.plain", "deep.far"):
        assert small.describe(name)["signature"] == PLAIN
    assert small.describe("once")["signature"][1] == ("cube_num", "positional or keyword", "-1")
    assert small.describe("deep.leaf") == {"kind": "function", "signature": [], "members": {}}
    assert small.describe("deep") == {"kind": "module"}
    assert small.describe("setting")["kind"] == "object"
    assert small.describe("Kind")["constants"] == {"FIRST": 0, "LAST": 1}
    assert small.describe("nowhere") is None
    thing = small.describe("Thing")
    assert [each[0] for each in thing["signature"]] == ["device", "kwargs"]
    assert thing["members"]["still"] == {
        "kind": "staticmethod",
        "signature": [("x", "positional or keyword", "[1]")],
    }
    assert thing["members"]["moved"]["signature"] == [("to", "keyword-only", "'here'")]
    assert small.describe("Thing.number") == {"kind": "property"}
    assert small.describe("Thing._hidden") is None


def test_differences_are_found(small):
    members = small.describe("Thing")["members"]
    here = {
        "plain": {"kind": "function", "signature": [*PLAIN[:2], ("c", "positional or keyword", "1"), *PLAIN[3:]]},
        "starred": {"kind": "function", "signature": PLAIN},
        "once": {"kind": "function", "signature": [("device", "positional or keyword", None)]},
        "Thing": {
            "kind": "class",
            "signature": small.describe("Thing")["signature"],
            "members": {"number": {"kind": "property"}, "still": members["still"] | {"kind": "method"}},
        },
        "setting": None,
        "Kind": {"kind": "class", "constants": {"FIRST": 0, "LAST": 2}, "members": {}},
        "nowhere": {"kind": "function", "signature": []},
        "made": {"kind": "object"},
    }
    found = compare(here, ["made", "unmade"], small, here)
    assert found.agree == ["starred", "Thing", "Thing.number"]
    assert found.unread == ["made"]
    assert found.differ["plain"] == (
        "function (a, b, c=65536.0, *rest, d, e=torch.float16, **more)",
        "function (a, b, c=1, *rest, d, e=torch.float16, **more)",
    )
    assert found.differ["Thing.moved"] == ("method (*, to='here')", "nothing")
    assert found.differ["setting"] == ("object", "nothing")
    assert found.differ["nowhere"] == ("nothing", "a name")
    assert found.differ.keys() == {"plain", "once", "Thing.still", "Thing.moved", "setting", "Kind", "nowhere"}
    assert found.share == pytest.approx(30)
    assert compare(["unmade"], ["unmade"], small, here).differ.keys() == {"unmade"}


def test_the_wheel_is_found(tmp_path):
    with pytest.raises(Unreadable, match="holds neither"):
        find(str(tmp_path), "2.13", tmp_path, 1)
    wheel = tmp_path / "deep" / "torch_npu-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl"
    wheel.parent.mkdir()
    wheel.touch()
    (tmp_path / "torch_npu-2.12.0-cp311-cp311-manylinux_2_28_x86_64.whl").touch()
    assert find(str(tmp_path), "2.13", tmp_path, 1) == wheel
    assert find("", "2.13", wheel.parent, 1) == wheel
    unpacked = tmp_path / "unpacked"
    (unpacked / "torch_npu" / "npu").mkdir(parents=True)
    (unpacked / "torch_npu" / "npu" / "__init__.py").touch()
    assert find(str(tmp_path), "2.13", tmp_path, 1) == unpacked
    assert find(str(unpacked), "2.13", tmp_path, 1) == unpacked


def test_nothing_of_the_wheel_is_imported():
    """The reader has no way to import: it neither imports importlib nor calls exec, and evals constants only."""
    for file in sorted((ROOT / "scripts" / "torch_npu_names").glob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        assert not called & {"exec", "__import__"}
        assert "importlib" not in imported
    assert "torch_npu" not in sys.modules


@pytest.mark.soak
def test_the_script_writes_the_page(published, tmp_path):
    if published.version != NAMES["version"]:
        pytest.skip(f"docs/compat.md is about torch-npu {NAMES['version']}, this is {published.version}")
    page = tmp_path / "compat.md"
    shutil.copy(PAGE, page)
    page.write_text(page.read_text(encoding="utf-8").replace("## The share that agrees", "## Old"), encoding="utf-8")
    text, _ = report(published)
    page.write_text(renewed(page.read_text(encoding="utf-8"), text), encoding="utf-8")
    assert page.read_bytes() == PAGE.read_bytes()
    with pytest.raises(ValueError, match="no <!-- begin"):
        renewed("# A page", text)

"""The calls of device/npu.py and device/accelerator.py, held against the published torch-npu wheel, never imported.

They have never run with torch_npu on a card: what can be said of them without one is that such names are there and
take such arguments. Where no wheel is to be had, these tests are skipped and say why; see published_wheel.py.
"""

import ast
import inspect
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
import published_wheel  # noqa: E402

DEVICE = ROOT / "src" / "toprope" / "device"
SOURCE = "\n".join((DEVICE / name).read_text(encoding="utf-8") for name in ("accelerator.py", "npu.py"))
NAMESPACES = ("npu", "module", "self._npu", "self._module", "self._memory")
KINDS = {
    "positional only": inspect.Parameter.POSITIONAL_ONLY,
    "positional or keyword": inspect.Parameter.POSITIONAL_OR_KEYWORD,
    "variadic positional": inspect.Parameter.VAR_POSITIONAL,
    "keyword-only": inspect.Parameter.KEYWORD_ONLY,
    "variadic keyword": inspect.Parameter.VAR_KEYWORD,
}


published = pytest.fixture(published_wheel.names, scope="module")


def tree():
    return ast.parse(SOURCE.replace("from __future__ import annotations", ""))


def calls():
    """(name, number of plain arguments, names of the others) of every call of torch.npu."""
    found = set()
    for node in ast.walk(tree()):
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Attribute) and ast.unparse(called.value) in NAMESPACES:
            found.add((called.attr, len(node.args), tuple(sorted(each.arg for each in node.keywords))))
    return sorted(found)


def names():
    """Every attribute of torch.npu that is read."""
    return {
        node.attr
        for node in ast.walk(tree())
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in NAMESPACES and not node.attr.startswith("__")
    }


def signature(described):
    return inspect.Signature([
        inspect.Parameter(name, KINDS[kind], default=inspect.Parameter.empty if default is None else default)
        for name, kind, default in described["signature"]
    ])  # fmt: skip


def test_the_calls_are_found():
    assert len(calls()) > 20
    assert {"Event", "Stream", "device_count", "mem_get_info", "synchronize"} <= names()
    assert {name for name, _, _ in calls()} == names()


@pytest.mark.parametrize(
    ("name", "plain", "keywords"), calls(), ids=lambda value: value if isinstance(value, str) else None
)
def test_torch_npu_has_the_name_and_takes_the_arguments(published, name, plain, keywords):
    described = published.describe(name)
    assert described is not None, f"torch_npu {published.version} has no torch.npu.{name}"
    signature(described).bind(*[None] * plain, **dict.fromkeys(keywords))


def test_what_is_asked_for_by_name_is_torch_npus(published):
    """Names in quotes: what an old release may lack, and what is looked for without a use of the card."""
    assert published.describe("set_stream_limit") is not None
    assert "set_stream_limit" in SOURCE
    members = published.describe("Stream")["members"]
    assert members["wait_stream"]["signature"] == [("stream", "positional or keyword", None)]
    members = published.describe("Event")["members"]
    assert {"record", "wait", "query", "synchronize", "elapsed_time"} <= set(members)


def test_the_question_without_a_use_is_the_one_torch_npu_itself_asks(published):
    text = published._text("torch_npu/npu/utils.py")
    assert "torch_npu._C._npu_getDeviceWithoutSet()" in text
    assert '"_npu_getDeviceWithoutSet"' in SOURCE


def test_the_entry_point_is_the_one_that_kills_import_torch(published):
    """device/torch_import.py explains what torch says of it."""
    assert "def _autoload" in published._text("torch_npu/__init__.py")
    assert '"TORCH_DEVICE_BACKEND_AUTOLOAD"' in published._text("torch_npu/__init__.py")

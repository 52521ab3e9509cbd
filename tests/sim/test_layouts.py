"""Layouts that Python reads are those of the C++ headers: layouts.py is what scripts/layouts.py writes."""

import ctypes
import importlib.util
import re
import sys
from pathlib import Path

import pytest

from toprope.sim import layouts

SPEC = importlib.util.spec_from_file_location("layouts_script", Path(__file__).parents[2] / "scripts" / "layouts.py")
assert SPEC is not None
assert SPEC.loader is not None
script = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = script
SPEC.loader.exec_module(script)


def test_the_module_is_what_the_headers_say() -> None:
    assert script.TARGET.read_text(encoding="utf-8") == script.written(), "run python scripts/layouts.py"


def test_sizes_are_those_that_the_compiler_checks() -> None:
    checked = {
        name: int(size)
        for file in script.WANTED
        for name, size in re.findall(r"sizeof\((\w+)\) == (\d+)", (script.CORE / file).read_text())
    }
    assert len(checked) >= 14
    assert {name: ctypes.sizeof(getattr(layouts, name)) for name in checked} == checked


@pytest.mark.parametrize(
    "text", ["  std::string name", "  uint64_t* where", "  Unknown one", "  uint32_t flag : 1", "  int64_t of() const"]
)
def test_what_the_script_does_not_read_is_an_error(text: str) -> None:
    with pytest.raises(script.UnknownCodeError):
        [script._field(field, {}, set()) for field in script.Header(f"struct S {{\n{text};\n}};").structure("S")]

"""Paths of this repository in module docstrings: each file that a docstring names is there.

Docstrings say which data file, C++ source or test must follow a module; this test finds the ones that a rename missed.
Only paths that begin with a folder of the repository, or of src/toprope, are looked at: others are the vendors'.
"""

import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "toprope"
OUTSIDE = ("benchmarks", "docs", "examples", "src/toprope", "tests")
INSIDE = sorted({path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "docs"} | {"csrc"})
PATH = re.compile(rf"(?<![\w./-])(?:{'|'.join([*OUTSIDE, *INSIDE])})/[\w./*-]*\w\.(?:cpp|h|md|py|toml)\b")
DOCSTRING = re.compile(r'(?:#.*\n)*"""(.*?)"""', re.DOTALL)
VENDORS = ("docs/zh/",)
ELSEWHERE = re.compile(r"\s+(?:and\s+[\w./]+\s+)?of\s+(?:Ascend|hicann|torch_npu|op-plugin)")


def named(text: str) -> list[str]:
    """The paths of this repository that a text names."""
    return [
        found[0]
        for found in PATH.finditer(text)
        if not found[0].startswith(VENDORS) and not ELSEWHERE.match(text, found.end())
    ]


@functools.cache
def is_there(path: str) -> bool:
    """Whether it is in the repository, in src/toprope, or in one of its packages ("csrc/core/trace.h")."""
    folders = (ROOT, SOURCE, *(SOURCE / name for name in INSIDE))
    return any(any(folder.glob(path)) for folder in folders if folder.is_dir())


@pytest.mark.parametrize("folder", ["src/toprope", "tests", "scripts", "benchmarks"])
def test_files_that_docstrings_name_are_there(folder):
    wrong = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        docstring = DOCSTRING.match(path.read_text(encoding="utf-8"))
        paths = named(docstring[1]) if docstring else []
        wrong += [f"{path.relative_to(ROOT)}: {each}" for each in paths if not is_there(each)]
    assert wrong == []


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("tests/sim/test_records.py holds it.", ["tests/sim/test_records.py"]),
        ("see csrc/core/trace.h (layouts.py)", ["csrc/core/trace.h"]),
        ("test/contrib/test_iou.py of Ascend/pytorch", []),
        ("benchmarks/run.py of Ascend/pytorch", []),
        ("docs/zh/custom_APIs/page.md", []),
        ("torch_npu/npu/graphs.py", []),
    ],
)
def test_paths_of_the_vendors_are_left_out(text, paths):
    assert named(text) == paths

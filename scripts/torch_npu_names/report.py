"""The whole comparison: the names of sim/npu/names.toml, in the wheel and here, as a page and as figures.

Called by `__main__` and by tests/compat/test_compat_torch_npu.py, which holds the figures.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from toprope.support.npu_operators import npu_operators

from .compare import Comparison, compare
from .here import read_here, read_operators
from .page import Operators, markdown
from .published import Published

__all__ = ["MINOR", "NAMES", "report"]

NAMES: dict[str, Any] = tomllib.loads(
    (Path(__file__).resolve().parents[2] / "src" / "toprope" / "sim" / "npu" / "names.toml").read_text(encoding="utf-8")
)
MINOR = NAMES["version"].rpartition(".")[0]
"""The version of torch and torch_npu that names.toml was written for, without its last part."""


def report(published: Published) -> tuple[str, dict[str, Comparison]]:
    """The page's text, and the comparison of each grade and of all."""
    graded = {grade: list(NAMES[grade]) for grade in ("must", "should")}
    graded["all"] = graded["must"] + graded["should"]
    here = read_here(graded["all"])
    found = {grade: compare(names, NAMES["compiled"], published, here) for grade, names in graded.items()}
    others = sorted({*published.all_names()} - {*graded["all"], *NAMES["could"]})
    table = npu_operators()
    every = {name.partition(".")[0] for name in (*table["npu"], *table["atb"])}
    operators = Operators(every, {*table["exposed"]}, every & read_operators())
    return markdown(NAMES, published.version, found, others, operators), found

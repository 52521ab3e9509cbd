"""Names that the vendors' packages export, and the nearest one to a misspelled name; from vendor_names.toml.

For error messages of names that are missing in a facade or in torch.npu, with the source of the list.
scripts/vendor_names.py writes the table from the vendors' repositories; nothing is added by hand. Tests:
tests/compat/test_vendor_names.py, tests/sim/simulated/test_npu_names.py.
"""

from __future__ import annotations

import difflib
import functools
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

__all__ = ["exported_names", "npu_name", "suggestion"]


@functools.cache
def exported_names() -> dict[str, Any]:
    """Return by package its `source`, and the names of its `modules`."""
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return the known name that a mistyped one is near to; "" for none."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.8)), "")


def npu_name(name: str, here: Iterable[str]) -> str:
    """Say whether the real torch_npu has `torch.npu.NAME`, and what else may have been meant.

    Args:
        name: of the missing attribute.
        here: names that the simulated card's module has.
    """
    vendor = exported_names()["torch_npu"]
    exported, source = vendor["modules"]["torch_npu.npu"], vendor["source"]
    if name in exported or f"torch_npu.npu.{name}" in vendor["modules"]:
        return f"the real torch_npu has it ({source}), toprope does not simulate it"
    if name.startswith("_"):
        return f"toprope does not have it; private names of torch_npu ({source}) are in no list, so that it may"
    near = suggestion(name, {*exported, *(each for each in here if not each.startswith("_"))})
    meant = f"; did you mean torch.npu.{near}?" if near else ""
    return f"torch_npu exports no such name ({source}){meant}"

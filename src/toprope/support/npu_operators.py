"""Operators of torch_npu: their schemas, which of them have a gradient, and the vendor's pages about them.

Read from npu_operators.toml, which scripts/npu_operators.py writes from the published wheel and op-plugin: a new field
is added there, and in `NpuOperators`. The torch_npu facade registers its operators by it
(compat/torch_npu/operators/registry.py); compat/missing.py answers by it. Tests: tests/compat/test_vendor_names.py,
tests/compat/test_torch_npu_facade.py.
"""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path
from typing import TypedDict

__all__ = ["NpuOperators", "npu_operators"]


class NpuOperators(TypedDict):
    """The table. Names in `npu`, `atb` and `differentiable` carry an overload: "npu_format_cast.Tensor".

    `without` has the chip families whose products an operator's page does not list.
    """

    source: str
    pages_at: str
    exposed: list[str]
    differentiable: list[str]
    npu: dict[str, str]
    atb: dict[str, str]
    pages: dict[str, str]
    without: dict[str, list[str]]
    deprecated: dict[str, str]


@functools.cache
def npu_operators() -> NpuOperators:
    """Read the table of torch_npu's operators (`npu_operators.toml`, written by scripts/npu_operators.py)."""
    path = Path(__file__).with_suffix(".toml")
    found: NpuOperators = tomllib.loads(path.read_text(encoding="utf-8"))  # type: ignore[assignment]
    return found

"""What a program is told when it asks the facade for a name that is not there."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import NoReturn

__all__ = ["missing"]


def missing(name: str) -> NoReturn:
    """Raise the error of a missing attribute, and say whether the real torch_npu has it.

    Args:
        name: the attribute, without "torch_npu.".

    Raises:
        AttributeError: always, so that hasattr and getattr with a default work as for any module.
    """
    # Python's own questions, such as __wrapped__, need no explanation.
    text = f"module 'torch_npu' has no attribute {name!r}"
    if not name.startswith("__"):
        text = f"toprope's facade of torch_npu does not have torch_npu.{name}: {_known(name)}"
    raise AttributeError(text, name=name)


def _known(name: str) -> str:
    table = tomllib.loads(Path(__file__).with_name("names.toml").read_text(encoding="utf-8"))
    real = f"the real torch_npu {table['version']}"
    if name in table["modules"]:
        return f"{real} has this module, toprope not yet"
    if name in table["names"]:
        return f"{real} has this API, toprope not yet"
    return f"nor do the published files of {real} name it"

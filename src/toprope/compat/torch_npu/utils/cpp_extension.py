"""Facade module: C++ extensions on torch_npu's headers and libraries, which the facade does not have.

`TorchExtension` is torch.utils.cpp_extension, whose extensions for the CPU build as always. `NpuExtension` is refused.
Tests: tests/compat/test_torch_npu_utils.py.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch.utils.cpp_extension as TorchExtension  # noqa: N812 - torch_npu's name of it

from toprope.compat.missing import not_simulated

__all__: list[str] = ["TorchExtension"]


def NpuExtension(name: str, sources: list[str], *args: Any, **kwargs: Any) -> NoReturn:  # noqa: N802
    """Refused: the extension would be compiled for a card.

    Raises:
        NotImplementedError: always.
    """
    raise not_simulated(
        "torch_npu.utils.cpp_extension.NpuExtension",
        f"the extension {name!r} needs the headers and libraries of the real torch_npu",
    )

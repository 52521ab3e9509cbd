"""Linear layer with int8 input and weights, with checks of all dtypes.

Programs import `LinearA8W8Quant` from `torch_npu.contrib.module`. Signature and errors are those of
torch_npu/contrib/module/linear_a8w8_quant.py of Ascend/pytorch; tests/compat/test_torch_npu_contrib.py holds the
values.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

from ..._error_codes import ErrCode, ops_error
from .linear_quant import LinearQuant

__all__ = ["LinearA8W8Quant"]

_TAKES: dict[str, tuple[torch.dtype, ...]] = {
    "scale": (torch.int64, torch.float32, torch.bfloat16),
    "offset": (torch.float32,),
    "bias": (torch.int32, torch.bfloat16, torch.float16, torch.float32),
    "pertoken_scale": (torch.float32,),
}


class LinearA8W8Quant(LinearQuant):
    """LinearQuant that refuses other dtypes itself. Deprecated in favour of LinearQuant.

    As in torch_npu a scale that needs no conversion (int64 or bfloat16, a scale for each row, or a result of the dtype
    bfloat16) fails when the layer runs, with UnboundLocalError.

    Args:
        in_features: size of the last axis of the input.
        out_features: size of the last axis of the output.
        bias: have a bias.
        offset: have an offset for int8 results.
        pertoken_scale: have a scale for each row of the input.
        device: without effect.
        dtype: without effect.
        output_dtype: dtype of the result: int8, float16 or bfloat16.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        offset: bool = False,
        pertoken_scale: bool = False,
        device: Any = None,
        dtype: Any = None,
        output_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            in_features, out_features, bias=bias, offset=offset, pertoken_scale=pertoken_scale,
            device=device, dtype=dtype, output_dtype=output_dtype,
        )  # fmt: skip
        warnings.warn(
            "torch_npu.contrib.module.LinearA8W8Quant is deprecated. Use torch_npu.contrib.module.LinearQuant instead.",
            FutureWarning,
            stacklevel=2,
        )

    def forward(self, linear_quant_input: torch.Tensor) -> torch.Tensor:
        """Multiply by the weights.

        Raises:
            ValueError: a dtype that the layer does not take.
            UnboundLocalError: the scale needs no conversion.
        """
        self._check(linear_quant_input)
        if self.pertoken_scale is not None or not self._needs_conversion():
            raise UnboundLocalError(
                "cannot access local variable 'scale_quant' where it is not associated with a value: torch_npu's "
                "LinearA8W8Quant fails so for these dtypes; use LinearQuant."
            )
        return super().forward(linear_quant_input)

    def _check(self, x: torch.Tensor) -> None:
        super()._check(x)
        for name, takes in _TAKES.items():
            tensor = getattr(self, name)
            if tensor is not None:
                _refuse_dtype(name, tensor.dtype, takes)
        if self.output_dtype is not None:
            _refuse_dtype("output_dtype", self.output_dtype, (torch.int8, torch.float16, torch.bfloat16))


def _refuse_dtype(name: str, dtype: torch.dtype, takes: tuple[torch.dtype, ...]) -> None:
    if dtype not in takes:
        *others, last = (str(each) for each in takes)
        listed = f"{', '.join(others)} or {last}" if others else last
        kind = "" if name == "output_dtype" else " datatype"
        raise ValueError(f"{name} should be {listed}{kind}, but now it is {dtype}." + ops_error(ErrCode.TYPE))

"""Facade module `dataflow.plugin.torch.torch_plugin`: `npu_model`, and dtypes of torch as DataFlow's and back.

Programs import it by this name, which is the vendor's, and so are the names in it, those with `_` too, and the texts of
their errors; the dtypes are those of toprope.flow.data_type. Tests: tests/flow/test_flow_func.py.
"""

from typing import Any

from toprope.compat.missing import missing_from
from toprope.flow import msg_type_register, npu_model
from toprope.flow.data_type import DTYPES, DType

__all__ = ["msg_type_register", "npu_model"]


def _convert_df_to_torch_tensor_dtype(df_dtype: DType) -> Any:
    import torch

    if not df_dtype.torch:
        raise ValueError(f"df_dtype {df_dtype} is not supported")
    return getattr(torch, df_dtype.torch)


def _convert_torch_to_df_tensor_dtype(torch_dtype: Any) -> DType:
    import torch

    for each in DTYPES:
        if each.torch and getattr(torch, each.torch, None) == torch_dtype:
            return each
    raise ValueError(f"torch_dtype {torch_dtype} is not supported")


__getattr__ = missing_from(__name__)

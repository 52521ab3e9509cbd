"""Facade package `torch_npu.distributed.rpc`: the backend NPU_TENSORPIPE of torch.distributed.rpc.

It carries tensors of cards between workers. Tests: tests/compat/test_torch_npu_rpc.py.
"""

import torch.distributed.rpc as rpc

from toprope.compat.missing import missing_from

__all__: list[str] = []

if rpc.is_available():
    from . import backend_registry  # noqa: F401

__getattr__ = missing_from(__name__)

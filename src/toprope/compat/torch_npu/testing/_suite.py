"""Switches of torch's own test suite that make it test the card, set when `torch_npu.testing` is imported.

The variables and names are those of torch.testing._internal, which a new torch may change; what each is set to follows
torch_npu. Tests: tests/compat/test_torch_npu_testing.py.
"""

from __future__ import annotations

import os

from toprope.imports import after_import

__all__ = ["choose_card"]

_SUITE = "torch.testing._internal"


def choose_card() -> None:
    """Have torch's test suite make tests for npu only."""
    os.environ["PYTORCH_TESTING_DEVICE_FOR_CUSTOM"] = "privateuse1"
    os.environ["PYTORCH_TESTING_DEVICE_EXCEPT_FOR"] = "cuda,cpu"
    after_import(f"{_SUITE}.common_utils", _name_card)
    after_import(f"{_SUITE}.common_cuda", _keep_cuda)
    after_import(f"{_SUITE}.common_device_type", _choose_tests)
    after_import(f"{_SUITE}.distributed.fake_pg", _extend_fake_group)


def _name_card() -> None:
    from torch.testing._internal import common_utils

    common_utils.TEST_CUDA = common_utils.TEST_PRIVATEUSE1


def _keep_cuda() -> None:
    import torch
    from torch.testing._internal import common_cuda

    vars(common_cuda)["TEST_CUDA"] = torch.cuda.is_available()  # it is about libraries of CUDA


def _choose_tests() -> None:
    from torch.testing._internal import common_device_type

    common_device_type.onlyCUDA = common_device_type.onlyPRIVATEUSE1


def _extend_fake_group() -> None:
    from torch.distributed import Backend

    devices = Backend.backend_capability["fake"]
    if "npu" not in devices:
        devices.append("npu")

"""One call of every operator of the facade of torch_npu, with tensors on the CPU: `samples()` of each module here.

A test runs them on the simulated card and under FakeTensorMode.
"""

import importlib
import pkgutil
from typing import Any

import torch

Sample = tuple[tuple[Any, ...], dict[str, Any]]


def every_sample() -> dict[str, Sample]:
    """Arguments and keywords, by the operator's name with overload."""
    found: dict[str, Sample] = {}
    torch.manual_seed(0)
    for module in pkgutil.iter_modules(__path__):
        found |= importlib.import_module(f"{__name__}.{module.name}").samples()
    return found

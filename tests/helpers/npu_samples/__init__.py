"""One call of every operator of the torch_npu facade, with tensors on the CPU: `samples()` of each module here.

tests/sim/simulated/test_npu_operators.py runs them on the simulated card and under FakeTensorMode. A new operator needs
a sample in one of these modules.
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

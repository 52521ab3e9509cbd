"""One interface to NPU, CUDA and CPU: which device, what it is, what works on it, and why there is none.

    from toprope import device

    card = device.get()                  # or "npu:1", "cuda", "cpu"; see device.choose for the reasons
    model.to(card.torch_device, card.best_dtype())
    weights = device.load("model.safetensors", card)

Importing it imports no torch; the first call does. Only the public names are here. Tests:
tests/base/test_import.py, tests/device/test_device_select.py.
"""

# For maintainers: the names of `__all__` are public: docs/device.md, docs/api. How they find a device: `select`,
# `kinds`, and a file for each kind (`npu`, `cuda`, `cpu`, `accelerator` for others). No other package calls torch.npu
# or torch.cuda (tests/device/test_device_boundary.py).

from toprope.device.api import best_dtype, load, seed_all, why_not
from toprope.device.base import Availability, Capabilities, Device, FallbackWarning, Memory, Properties, State
from toprope.device.kinds import kinds
from toprope.device.memory import is_out_of_memory
from toprope.device.probing import DtypeChoice, DtypeProbe
from toprope.device.seeds import concrete_seed
from toprope.device.select import Choice, available, choose, current, get, survey, use

__all__ = [
    "Availability",
    "Capabilities",
    "Choice",
    "Device",
    "DtypeChoice",
    "DtypeProbe",
    "FallbackWarning",
    "Memory",
    "Properties",
    "State",
    "available",
    "best_dtype",
    "choose",
    "concrete_seed",
    "current",
    "get",
    "is_out_of_memory",
    "kinds",
    "load",
    "seed_all",
    "survey",
    "use",
    "why_not",
]

"""Facade package `torch_npu.utils`: combined tensors, a counter of operations, CPU affinity, saving in the background.

Names and signatures are torch_npu's; tests/compat/test_torch_npu_utils.py holds them.
"""

from toprope.compat.missing import missing_from

from .._facade import current_npu
from .affinity import _reset_thread_affinity as reset_thread_affinity
from .affinity import _set_thread_affinity as set_thread_affinity
from .combine_tensors import get_part_combined_tensor, is_combined_tensor_valid, npu_combine_tensors
from .flops_count import _FlopsCounter as FlopsCounter
from .serialization import save_async

__all__ = [
    "FlopsCounter",
    "get_cann_version",
    "get_part_combined_tensor",
    "is_combined_tensor_valid",
    "npu_combine_tensors",
    "reset_thread_affinity",
    "save_async",
    "set_thread_affinity",
]


def get_cann_version(module: str = "CANN") -> str:
    """The version of a part of CANN, as `torch.npu.utils` tells it: an empty text here.

    Args:
        module: "CANN", "RUNTIME", "DRIVER" and the like.
    """
    npu = current_npu()
    return str(npu.utils.get_cann_version(module)) if hasattr(npu, "utils") else ""


__getattr__ = missing_from(__name__)

"""Object `torch.npu.backends.fft_plan_cache`: the plans of Fourier transforms that a card keeps.

The C++ core counts them (csrc/torch/fft_plans.cpp). Tests: tests/sim/simulated/test_complex_and_linalg.py.
"""

from __future__ import annotations

from typing import Any

from toprope.sim.native import native

__all__ = ["NPUFFTPlanCache", "fft_plan_cache"]

_SIZES = range(1, 100)


class NPUFFTPlanCache:
    """The number of plans that are kept (`size`), and its limit (`max_size`, 10 at first).

    A plan belongs to the size of an axis, its kind of transform and its dtype. The one that was not used for longest
    goes first. A `max_size` outside 1 to 99 changes nothing, as on a card.
    """

    def __getattr__(self, name: str) -> int:
        if name == "size":
            return int(native().fft_plans())
        if name == "max_size":
            return int(native().most_fft_plans())
        raise AttributeError("Unknown attribute " + name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "size":
            raise RuntimeError(".size is a read-only property showing the number of plans currently in the cache.")
        if name != "max_size":
            raise AttributeError("Unknown attribute " + name)
        if int(value) in _SIZES:
            native().set_most_fft_plans(int(value))

    def clear(self) -> None:
        """Forget all plans."""
        native().forget_fft_plans()


fft_plan_cache = NPUFFTPlanCache()

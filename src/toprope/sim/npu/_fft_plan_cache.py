"""`torch.npu.backends.fft_plan_cache`: settings of the plans of Fourier transforms that a card keeps."""

from __future__ import annotations

from typing import Any

__all__ = ["NPUFFTPlanCache", "fft_plan_cache"]


class NPUFFTPlanCache:
    """The settings of the cache. The simulated card makes no plans, so that none are kept."""

    def __init__(self) -> None:
        object.__setattr__(self, "_max_size", 50)

    def __getattr__(self, name: str) -> int:
        if name == "size":
            return 0
        if name == "max_size":
            return int(vars(self)["_max_size"])
        raise AttributeError("Unknown attribute " + name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "size":
            raise RuntimeError(".size is a read-only property showing the number of plans currently in the cache.")
        if name != "max_size":
            raise AttributeError("Unknown attribute " + name)
        object.__setattr__(self, "_max_size", int(value))

    def clear(self) -> None:
        """Forget all plans."""


fft_plan_cache = NPUFFTPlanCache()

"""Which dtypes really work on a device: matmul, convolution and attention are run there, with results known before."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from toprope.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    import torch

__all__ = ["PROBES", "DtypeProbe", "first_that_works", "probe"]


@dataclass(frozen=True)
class DtypeProbe:
    """Whether a dtype works on a device.

    Attributes:
        dtype: its name without "torch.".
        works: whether matmul, convolution and attention all ran and gave the right numbers.
        failed: the first of them that did not; "" where all did, or where the dtype was not tried.
        reason: what the device said, in one line.
        seconds: what the three took together, the second time each was run.
    """

    dtype: str
    works: bool
    failed: str = ""
    reason: str = ""
    seconds: float = 0.0


class _Device(Protocol):
    """The part of `toprope.device.Device` that is needed here."""

    index: int
    torch_device: torch.device

    @property
    def kind(self) -> str: ...
    @property
    def dtype_order(self) -> tuple[str, ...]: ...
    def refuses(self, dtype: torch.dtype) -> str: ...
    def is_out_of_memory(self, error: BaseException) -> bool: ...
    def synchronize(self) -> None: ...
    def as_current(self) -> AbstractContextManager[object]: ...


# All numbers are whole and small, so that every dtype that works has exactly these results.


def _matmul(device: torch.device, dtype: torch.dtype) -> tuple[torch.Tensor, float]:
    import torch

    return torch.ones(32, 64, device=device, dtype=dtype) @ torch.ones(64, 32, device=device, dtype=dtype), 64.0


def _convolution(device: torch.device, dtype: torch.dtype) -> tuple[torch.Tensor, float]:
    import torch

    picture = torch.ones(1, 16, 8, 8, device=device, dtype=dtype)
    return torch.nn.functional.conv2d(picture, torch.ones(16, 16, 3, 3, device=device, dtype=dtype)), 144.0


def _attention(device: torch.device, dtype: torch.dtype) -> tuple[torch.Tensor, float]:
    import torch

    query = torch.ones(1, 2, 16, 64, device=device, dtype=dtype)
    value = torch.full((1, 2, 16, 64), 2.0, device=device, dtype=dtype)
    return torch.nn.functional.scaled_dot_product_attention(query, query, value), 2.0


PROBES: dict[str, Callable[[torch.device, torch.dtype], tuple[torch.Tensor, float]]] = {
    "matmul": _matmul,
    "convolution": _convolution,
    "attention": _attention,
}
"""What is tried: each makes a tensor on the device whose numbers must all be the one it names."""

_lock = threading.Lock()
_known: dict[tuple[str, int, torch.dtype], DtypeProbe] = {}


def probe(device: _Device, dtype: torch.dtype) -> DtypeProbe:
    """Whether a dtype works on a device; tried once a process.

    Raises:
        UsageError: it is no torch.dtype.
    """
    import torch

    if not isinstance(dtype, torch.dtype):
        raise UsageError(f"{dtype!r} is no torch.dtype.", do="give one such as torch.bfloat16")
    key = (device.kind, device.index, dtype)
    with _lock:
        found = _known.get(key)
        if found is None:
            found = _known[key] = _probe(device, dtype)
        return found


def first_that_works(device: _Device, among: Sequence[torch.dtype]) -> torch.dtype:
    """The first dtype that works on a device.

    Args:
        device: where to try them.
        among: best first; empty for those that the kind of device names.

    Raises:
        UnsupportedError: none works.
        UsageError: one of them is no torch.dtype.
    """
    import torch

    tried: list[DtypeProbe] = []
    for dtype in among or [getattr(torch, name) for name in device.dtype_order]:
        found = probe(device, dtype)
        if found.works:
            return dtype
        tried.append(found)
    raise UnsupportedError(
        f"{device} computes in none of {', '.join(each.dtype for each in tried)}.",
        looked_at="; ".join(f"{each.dtype}: {each.failed or 'not tried'}: {each.reason}" for each in tried),
        do="allow another dtype, or use another device",
    )


def _without_autocast(kind: str) -> AbstractContextManager[object]:
    """A context in which a dtype is the one that was asked for."""
    import torch

    try:
        on = torch.is_autocast_enabled(kind)
    except RuntimeError:  # a kind that has none
        on = False
    return torch.autocast(kind, enabled=False) if on else nullcontext()


def _probe(device: _Device, dtype: torch.dtype) -> DtypeProbe:
    import torch

    name = str(dtype).removeprefix("torch.")
    reason = device.refuses(dtype)
    if reason:
        return DtypeProbe(name, False, reason=reason)
    seconds = 0.0
    with torch.no_grad(), _without_autocast(device.torch_device.type), device.as_current():
        for what, run in PROBES.items():
            try:
                result, wanted = run(device.torch_device, dtype)
                device.synchronize()  # on a card, an operator that is refused may say so only here
                begin = time.perf_counter()
                result, wanted = run(device.torch_device, dtype)
                device.synchronize()
                seconds += time.perf_counter() - begin
                got = result.cpu()
            except Exception as error:  # whatever the software of a device raises
                if device.is_out_of_memory(error):
                    raise  # says nothing about the dtype
                return DtypeProbe(name, False, what, " ".join(str(error).split()))
            right = got == wanted
            if not bool(right.all()):
                wrong = got[~right].flatten()[0].item()
                return DtypeProbe(name, False, what, f"the result is {wrong}, and not {wanted:g}")
    return DtypeProbe(name, True, seconds=seconds)

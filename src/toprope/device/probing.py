"""Probe of dtypes on a device: runs matmul, convolution and attention there, and checks the results.

Called through `Device.probe`, `best_dtype`, `choose_dtype` and `why_not`. What counts as working is decided by the
three trials here, on the device itself and never by a table. Their sizes are free as long as every number is whole and
small, so that a dtype that works has it exactly. A device that is full says nothing about the dtype. Tests:
tests/device/test_device_probing.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from toprope.device.memory import HasMemory, needs_memory
from toprope.errors import DeviceFullError, UnsupportedError, UsageError

if TYPE_CHECKING:
    import torch

__all__ = ["PROBES", "DtypeChoice", "DtypeProbe", "choose_dtype", "probe", "why_not"]


@dataclass(frozen=True)
class DtypeProbe:
    """The answer if a dtype works on a device.

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

    @property
    def text(self) -> str:
        """The finding in one line."""
        if self.works:
            return f"{self.dtype} works"
        return f"{self.dtype} does not work: {self.failed + ': ' if self.failed else ''}{self.reason}"


class _Device(HasMemory, Protocol):
    """The part of `toprope.device.Device` that is needed here."""

    index: int
    torch_device: torch.device

    @property
    def kind(self) -> str: ...
    @property
    def dtype_order(self) -> tuple[str, ...]: ...
    @property
    def dtype_order_reason(self) -> str: ...
    def refuses(self, dtype: torch.dtype) -> str: ...
    def synchronize(self) -> None: ...
    def as_current(self) -> AbstractContextManager[object]: ...


@dataclass(frozen=True)
class DtypeChoice:
    """The best dtype for a device, and why it is this one.

    Attributes:
        device: the device's name.
        dtype: the first that works.
        order: names of the dtypes in the order in which they are tried.
        failed: those before it, none of which works.
        order_reason: why they are tried in this order; empty where that is for their size.
    """

    device: str
    dtype: torch.dtype
    order: tuple[str, ...]
    failed: tuple[DtypeProbe, ...]
    order_reason: str = ""

    @property
    def text(self) -> str:
        """The choice and its reasons in one line."""
        reasons = [f"the first of {', '.join(self.order)} that works", *(each.text for each in self.failed)]
        return f"{_name(self.dtype)} on {self.device} ({'; '.join([*reasons, self.order_reason]).rstrip('; ')})"


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
"""The trials: each makes a tensor on the device whose numbers must all be the one it names."""

_lock = threading.Lock()
_known: dict[tuple[str, int, torch.dtype], DtypeProbe] = {}


def probe(device: _Device, dtype: torch.dtype) -> DtypeProbe:
    """Try a dtype on a device, once a process.

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


def choose_dtype(device: _Device, among: Sequence[torch.dtype]) -> DtypeChoice:
    """The first dtype that works on a device.

    Args:
        device: where to try them.
        among: best first; empty for those that the kind of device names.

    Raises:
        UnsupportedError: none works.
        DeviceFullError: the device has no memory left to try one.
        UsageError: one of them is no torch.dtype.
    """
    import torch

    order = tuple(among) or tuple(getattr(torch, name) for name in device.dtype_order)
    names = tuple(map(_name, order))
    failed: list[DtypeProbe] = []
    for dtype in order:
        found = probe(device, dtype)
        if found.works:
            return DtypeChoice(str(device), dtype, names, tuple(failed), "" if among else device.dtype_order_reason)
        failed.append(found)
    raise UnsupportedError(
        f"{device} computes in none of {', '.join(names)}.",
        looked_at="; ".join(f"{each.dtype}: {each.failed or 'not tried'}: {each.reason}" for each in failed),
        do="allow another dtype, or use another device",
    )


def why_not(device: _Device, dtype: torch.dtype) -> str:
    """Explain why a dtype is not the best one for a device; "" where it is. Errors as for `choose_dtype`."""
    found = probe(device, dtype)
    if not found.works:
        return f"on {device}, {found.text}"
    choice = choose_dtype(device, ())
    return "" if dtype is choice.dtype else f"on {device}, {found.text}, and best_dtype() is {choice.text}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _without_autocast(kind: str) -> AbstractContextManager[object]:
    """A context in which a dtype is the one that was asked for."""
    import torch

    try:
        on = torch.is_autocast_enabled(kind)
    except RuntimeError:  # a kind that has none
        on = False
    return torch.autocast(kind, enabled=False) if on else nullcontext()


def _probe(device: _Device, dtype: torch.dtype) -> DtypeProbe:
    """Run the three trials of a dtype, and compare their numbers; an out-of-memory error is raised."""
    import torch

    name = _name(dtype)
    reason = device.refuses(dtype)
    if reason:
        return DtypeProbe(name, False, reason=reason)
    seconds = 0.0
    with torch.no_grad(), _without_autocast(device.torch_device.type), device.as_current():
        for what, run in PROBES.items():
            try:
                with needs_memory(device, f"try {name} on it"):  # running out says nothing about the dtype
                    result, wanted = run(device.torch_device, dtype)
                    device.synchronize()  # on a card, an operator that is refused may say so only here
                    begin = time.perf_counter()
                    result, wanted = run(device.torch_device, dtype)
                    device.synchronize()
                    seconds += time.perf_counter() - begin
                    got = result.cpu()
            except DeviceFullError:
                raise
            except Exception as error:  # whatever the software of a device raises
                return DtypeProbe(name, False, what, " ".join(str(error).split()))
            right = got == wanted
            if not bool(right.all()):
                wrong = got[~right].flatten()[0].item()
                return DtypeProbe(name, False, what, f"the result is {wrong}, and not {wanted:g}")
    return DtypeProbe(name, True, seconds=seconds)

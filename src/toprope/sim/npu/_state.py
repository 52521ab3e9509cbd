"""Parts that the modules of `torch.npu` share: initialisation, device numbers, streams, torch_npu's form of errors.

Used all over toprope.sim and by operators of the torch_npu facade. Numbers of streams follow csrc/core/stream.h, codes
are those of error_codes.toml. Tests: tests/sim/simulated/test_devices.py and test_visible_devices.py.
"""

from __future__ import annotations

import os
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from importlib import resources
from typing import Any

import torch

from toprope import chips
from toprope.sim.metrics.python_errors import note_missing
from toprope.sim.native import native
from toprope.sim.spec import SimSpec
from toprope.sim.state import installed

__all__ = [
    "ACL",
    "INTERNAL",
    "INVALID",
    "NOT_SUPPORTED",
    "PARAMETER",
    "TYPE",
    "UNAVAILABLE",
    "VALUE",
    "allocator_index",
    "also_in_torch_npu",
    "check_index",
    "chip",
    "device_index",
    "every_stream",
    "is_stream_number",
    "lazy_init",
    "message",
    "not_here",
    "one_module",
    "spec",
    "stream_key",
    "vendor_error",
]

PARAMETER = "ERR00001 PTA invalid parameter"
TYPE = "ERR00002 PTA invalid type"
VALUE = "ERR00003 PTA invalid value"
INTERNAL = "ERR00005 PTA internal error"
NOT_SUPPORTED = "ERR00007 PTA feature not supported"
UNAVAILABLE = "ERR00009 PTA resource unavailable"
ACL = "ERR00100 PTA call acl api failed"

INVALID = 107000
"""The vendor's code of a parameter that does not pass its verification."""

SYNC_LAUNCH, EXTERNAL = range(64, 68), range(160, 192)
"""Numbers of the streams that pass torch_npu's queue by, and of those of other libraries (csrc/core/stream.h)."""

_STREAMS = (0, *SYNC_LAUNCH, *range(96, 160), *EXTERNAL)
"""Numbers of the streams of a card: is_stream of csrc/core/stream.cpp."""

_BAD_FORK = (
    "Cannot re-initialize NPU in forked subprocess. To use NPU with multiprocessing, you must use the 'spawn' start"
    " method"
)


def spec() -> SimSpec:
    """The simulated cards of this process."""
    found = installed()
    assert found is not None, "torch.npu exists only where the simulated card is installed"
    return found


def chip() -> chips.Chip:
    """The chip that all cards of this process have."""
    return chips.get(spec().chip)


def message(text: str, code: str, rank: int | str | None = None) -> str:
    """A message as torch_npu ends it: when, in which process, on which card, and a code such as `VALUE`.

    Args:
        text: its beginning.
        code: with the code's own words.
        rank: of this process; None for the one in RANK, else -1.
    """
    date = time.strftime("%Y-%m-%d-%H:%M:%S")
    device = -1 if installed() is None else native().current_device()
    rank = os.environ.get("RANK", "-1") if rank is None else rank
    return f"{text}\n[ERROR] {date} (PID:{os.getpid()}, Device:{device}, RankID:{rank}) {code}"


def vendor_error(function: str, call: str, code: int, detail: str) -> RuntimeError:
    """The error of a call to the vendor's runtime that failed, worded as torch_npu words it.

    Args:
        function: torch_npu's function that made the call.
        call: what it called, as torch_npu prints it.
        code: the vendor's code, one of error_codes.toml.
        detail: what the runtime itself says, such as "EE1003: ...".
    """
    table = tomllib.loads(resources.files("toprope.sim").joinpath("error_codes.toml").read_text(encoding="utf-8"))
    text = table["codes"][str(code)]["text"]
    start = f"{function}: NPU function error: {call}, error code is {code}"
    return RuntimeError(f"{message(start, ACL)}\n[Error]: {text}\n{detail}")


def not_here(name: str, why: str) -> NotImplementedError:
    """The error of an API of torch_npu that toprope's simulated card does not have.

    Args:
        name: the API without "torch.npu.".
        why: what is missing, as the end of a sentence.
    """
    text = f"torch.npu.{name} is not there on toprope's simulated card: {why}."
    note_missing(f"torch.npu.{name}", text)
    return NotImplementedError(text)


def lazy_init() -> None:
    """Initialise the cards of this process, as every call that touches one does.

    Raises:
        RuntimeError: this process was forked from one that had used a card.
    """
    if native().forked_after_use():
        raise RuntimeError(_BAD_FORK)
    native().use_cards()


def device_index(device: Any = None, optional: bool = True, allow_cpu: bool = False) -> int:
    """The number of a card given as number, string, torch.device, `torch.npu.device` or None (the current one).

    Raises:
        ValueError: the device is of another kind, or none was given and `optional` is false.
    """
    if isinstance(device, int) and not isinstance(device, bool):
        return device
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        if allow_cpu and device.type == "cpu":
            return -1
        if device.type != "npu":
            kinds = "npu or cpu" if allow_cpu else "npu"
            raise ValueError(message(f"Expected a {kinds} device, but got: {device}", VALUE))
        if device.index is not None:
            return device.index
    elif device is not None:
        index = getattr(device, "idx", None)
        if isinstance(index, int):
            return index
        raise ValueError(message(f"Expected a npu device, but got: {device!r}", VALUE))
    if not optional:
        raise ValueError(message("Expected a device with a specified index or an integer, but got: None", VALUE))
    return int(native().current_device())


def check_index(device: Any) -> int:
    """The number of a card that is there.

    Raises:
        AssertionError: no card of that number, as torch_npu's queries report it.
    """
    index = device_index(device)
    if not 0 <= index < native().device_count():
        raise AssertionError(message("Invalid device id", VALUE))
    return index


def allocator_index(device: Any) -> int:
    """The number of a card, for what is asked of its allocator.

    Raises:
        RuntimeError: no card of that number, in the words of torch_npu's allocator.
    """
    index = device_index(device)
    if not 0 <= index < native().device_count():
        raise RuntimeError(message(f"Invalid device argument {index}: did you call init?", PARAMETER))
    return index


def every_stream(device: int) -> Iterator[torch.Stream]:
    """Yield all streams that work can be queued on."""
    for number in _STREAMS:
        yield torch.Stream(**stream_key(device, number))


def stream_key(device: int, number: int) -> dict[str, int]:
    """Return the arguments of `torch.Stream` for a stream of a card by its number."""
    kind = torch.accelerator.current_stream(torch.device("npu", device)).device_type
    return {"stream_id": number, "device_index": device, "device_type": kind}


def is_stream_number(number: int) -> bool:
    """Return True if a card has a stream of this number."""
    return number in _STREAMS


def one_module(name: str) -> None:
    """Let a module of this package, under whichever name it is being loaded, be the same one under all of them."""
    module, short = sys.modules[name], name.rpartition(".")[2]
    for package in {"toprope.sim.npu", "torch.npu", "torch_npu.npu"} & sys.modules.keys():
        sys.modules.setdefault(f"{package}.{short}", module)


def also_in_torch_npu(module: str) -> Callable[[str], Any]:
    """Make the `__getattr__` of a module: names that torch_npu has there and in torch.npu, and toprope only here.

    Args:
        module: its `__name__`.
    """

    def find(name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name)
        return getattr(torch.npu, name)  # type: ignore[attr-defined]

    return find

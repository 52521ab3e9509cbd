"""The choice of a device: argument > context > TOPROPE_DEVICE > PREFERRED_DEVICE > [tool.toprope] > NPU, CUDA, CPU.

What is asked for is granted or refused with the reasons; another device in its place only where that was allowed.

Public through `toprope.device`; `tiers`, `images` and `compat` call it too. The order above is documented in
docs/device.md, and so are the classes of the errors. `get` of a name that was granted before is fast: it is called in
loops. Tests: tests/device/test_device_select.py, tests/device/test_device_absent.py.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from contextlib import AbstractContextManager, ContextDecorator
from contextvars import ContextVar, Token
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from toprope.device.base import Availability, Device, FallbackWarning, State
from toprope.device.device_string import AUTO, DeviceRequest, read_name
from toprope.device.kinds import device_class, kinds, look
from toprope.device.torch_import import check_torch
from toprope.errors import (
    DeviceBrokenError,
    DeviceIndexError,
    DeviceMaskError,
    DeviceNotInstalledError,
    DeviceNotVisibleError,
    DeviceUnavailableError,
    SettingError,
    TopropeError,
)
from toprope.settings import Settings

if TYPE_CHECKING:
    import torch

    DeviceLike = str | int | torch.device | Device

__all__ = ["Choice", "available", "choose", "current", "get", "survey", "use"]

PREFERRED = "PREFERRED_DEVICE"
"""The variable that ports of other programs read; TOPROPE_DEVICE goes before it."""

SIMULATED = "sim"
"""The name of the settings for an NPU that must be the simulated one. To a program it is an npu."""

_log = logging.getLogger("toprope")
_inside: ContextVar[Device | None] = ContextVar("toprope.device", default=None)
_granted: dict[object, tuple[Device, str, str | None]] = {}  # a name with its index: device, its mask, the mask's text
_masks: dict[str, str | None] = {}  # kind: its mask when the first device was granted
_told: set[object] = set()
_TOPROPE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")

_ERRORS = {
    State.NOT_INSTALLED: DeviceNotInstalledError,
    State.BROKEN: DeviceBrokenError,
    State.NO_CARD: DeviceNotVisibleError,
}


@dataclass(frozen=True)
class Choice:
    """A device, and why it is this one.

    Attributes:
        device: what was granted.
        asked: the name that was asked for; "auto" where the choice was left to toprope.
        source: who asked: "argument", "context", "environment variable NAME", a pyproject.toml's path, "automatic".
        passed_over: what was looked at before and why it was not taken, one line each.
    """

    device: Device
    asked: str
    source: str
    passed_over: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The choice and its reasons in one line."""
        wanted = self.source if self.asked == AUTO else f"{self.asked} asked for by {self.source}"
        return f"{self.device} ({'; '.join((wanted, *self.passed_over))})"


def get(device: DeviceLike | None = None, *, fallback: bool | None = None) -> Device:
    """The device to use.

    Args:
        device: "npu:1", "cuda", "cpu", "auto", a number, a torch.device; None leaves it to the context (`use`), the
            variables TOPROPE_DEVICE and PREFERRED_DEVICE, [tool.toprope], and then to what is there: NPU, CUDA, CPU.
            Without an index, the current device of this thread is meant.
        fallback: whether another device may be taken where the one asked for is not there, with one warning; None
            leaves it to TOPROPE_FALLBACK, which is off.

    Raises:
        DeviceNameError: no such name, or no such kind of device.
        DeviceNotInstalledError, DeviceBrokenError, DeviceNotVisibleError: why there is no device of this kind.
        DeviceIndexError: there are some, but not of this index.
        DeviceMaskError: which cards the process sees was changed after it had used one.
        SettingError: a variable or pyproject.toml cannot be read.

    Example:
        >>> from toprope import device
        >>> device.get("cpu")
        <toprope device cpu>
    """
    known = _granted.get(device) if device.__class__ is str else None
    if known is None:
        return choose(device, fallback=fallback).device
    found, variable, mask = known
    if variable and os.environ.get(variable) != mask:
        raise _late_mask(variable, mask)
    return found


def choose(
    device: DeviceLike | None = None,
    *,
    fallback: bool | None = None,
    quiet: bool = False,
    first: tuple[str, ...] = (),
) -> Choice:
    """The device to use, with the reasons. Errors as for `get`.

    Args:
        device, fallback: as for `get`.
        quiet: the caller says itself what was chosen: the log's line about it is left out. Warnings stay.
        first: kinds that are tried before all others where toprope chooses, for programs with an order of their own.
    """
    check_torch()
    choice = _chosen(device, fallback, first)
    return choice if quiet else _said(choice)


def current() -> Device:
    """The device in force: of the innermost `use`, else as `get` chooses without an argument. Errors as for `get`."""
    inside = _inside.get()
    return get() if inside is None else inside


def available(kind: str | None = None) -> list[Device]:
    """Every device that this process sees, best kind first; the CPU is always among them.

    Args:
        kind: only devices of this kind.

    Raises:
        DeviceNameError: there is no such kind.

    Example:
        >>> [each.kind for each in available("cpu")]
        ['cpu']
    """
    check_torch()
    names = kinds() if kind is None else (read_name(kind).kind,)
    return [_device(name, index) for name in names for index in range(look(name).count)]


def survey() -> list[Availability]:
    """The state of every kind of device in this process, with the reason, in the order in which they are tried.

    Example:
        >>> [each.kind for each in survey()]
        ['npu', 'cuda', 'cpu']
    """
    check_torch()
    return [look(kind) for kind in kinds()]


class use(ContextDecorator):  # noqa: N801 - reads as a verb, as torch's own contexts do
    """A context, and a decorator, in which a device is the one in force: for `get()`, and as torch's current device.

    It holds for this thread, as torch's current device does. Work for a thread pool takes its device along:
    `pool.submit(use("npu:1")(work), data)`.

    Args:
        device: as for `get`.
        fallback: as for `get`.

    Example:
        >>> from toprope import device
        >>> with device.use("cpu") as chosen:
        ...     device.current() is chosen
        True
    """

    def __init__(self, device: DeviceLike | None = None, *, fallback: bool | None = None) -> None:
        self._arguments = device, fallback
        self._entered: list[tuple[AbstractContextManager[Any], Token[Device | None]]] = []

    def __enter__(self) -> Device:
        asked, fallback = self._arguments
        device = get(asked, fallback=fallback)
        context = device.as_current()
        context.__enter__()
        self._entered.append((context, _inside.set(device)))
        return device

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        context, token = self._entered.pop()
        _inside.reset(token)
        context.__exit__(kind, error, trace)

    def _recreate_cm(self) -> use:  # called by ContextDecorator: calls of a decorated function may overlap
        device, fallback = self._arguments
        return use(device, fallback=fallback)


def _chosen(device: DeviceLike | None, fallback: bool | None, first: tuple[str, ...]) -> Choice:
    """Grant what was asked for, or choose; fall back where that is allowed."""
    asked, source = _asked(device)
    if asked == DeviceRequest(AUTO):
        return _automatic(source, first)
    try:
        return Choice(_grant(asked, first), str(asked), source)
    except (DeviceUnavailableError, DeviceIndexError) as error:
        if not _may_fall_back(fallback):
            raise _with_source(error, source) from error.__cause__
        return _fallen_back(asked, source, error, first)


def _asked(device: DeviceLike | None) -> tuple[DeviceRequest, str]:
    """A wish for a device, and its origin."""
    if device is not None:
        return read_name(device), "argument"
    inside = _inside.get()
    if inside is not None:
        return DeviceRequest(inside.kind, inside.index), "context"
    settings = Settings.load()
    origin = settings.origins["device"]
    preferred = os.environ.get(PREFERRED, "").strip()
    if preferred and not origin.startswith("environment"):
        return _read_setting(preferred, PREFERRED), f"environment variable {PREFERRED}"
    if settings.device is None:
        return DeviceRequest(AUTO), "automatic"
    return _read_setting(settings.device, origin), origin


def _read_setting(text: str, source: str) -> DeviceRequest:
    """Parse a device from a variable or a file; errors name it."""
    try:
        asked = read_name(text)
        if asked.kind not in (AUTO, SIMULATED):
            device_class(asked.kind)
    except DeviceBrokenError:
        return asked  # said where it is granted
    except TopropeError as error:
        raise SettingError(
            error.what, looked_at=f"{source}={text}; {error.looked_at}".rstrip("; "), do=error.do
        ) from None
    return asked


def _device(kind: str, index: int) -> Device:
    """The one object for a device that is there."""
    name = f"{kind}:{index}"
    known = _granted.get(name)
    if known is not None:
        return known[0]
    found = device_class(kind)(index)
    variable = found.mask_variable
    mask = _masks.setdefault(kind, os.environ.get(variable) if variable else None)
    known = _granted.setdefault(name, (found, variable, mask))
    _granted.setdefault(str(found), known)  # where there can be one only, its name has no number
    return known[0]


def _grant(asked: DeviceRequest, first: tuple[str, ...] = ()) -> Device:
    """The device that was asked for, or the error that says why not."""
    kind = "npu" if asked.kind == SIMULATED else asked.kind
    if kind == AUTO:
        kind = _automatic("", first).device.kind
    cls = device_class(kind)
    _check_mask(kind)
    stand = cls.look()
    if asked.kind == SIMULATED and stand.state in (State.NOT_INSTALLED, State.BROKEN):
        raise DeviceNotInstalledError(
            "there is no simulated card in this process.",
            looked_at=stand.text,
            do=f"run the program with `toprope run --device sim`, set TOPROPE_SIM=910B3, or use {_others_than(kind)}",
        )
    if stand.state is not State.WORKS:
        raise _ERRORS[stand.state](
            f"there is no {asked.kind}: {stand.reason}.",
            looked_at=stand.looked_at,
            do=f"{stand.do}, or use {_others_than(kind)}" if stand.do else f"use {_others_than(kind)}",
        )
    index = cls.current_index() if asked.index is None else asked.index
    if index >= stand.count:
        raise _no_index(cls, index, stand.count)
    device = _device(kind, index)
    if asked.kind == SIMULATED and not device.capabilities.simulated:
        raise DeviceNotInstalledError(
            "there is no simulated card in this process, the npu is a real one.",
            looked_at=cls.facts(),
            do="run the program with `toprope run --device sim`, or ask for npu",
        )
    return device


def _automatic(source: str, first: tuple[str, ...]) -> Choice:
    """Take the first kind that works, and keep the reasons against those before it."""
    passed: list[Availability] = []
    for kind in (*first, *(kind for kind in kinds() if kind not in first)):
        _check_mask(kind)
        stand = look(kind)
        if stand.state is State.WORKS:
            device = _grant(DeviceRequest(kind))
            for each in passed:
                if each.surprising and (each.text, str(device)) not in _told:
                    _told.add((each.text, str(device)))
                    _log.warning("device %s is used; %s (%s)", device, each.text, each.do)
            return Choice(device, AUTO, source, tuple(each.text for each in passed))
        passed.append(stand)
    raise DeviceNotVisibleError("there is no device at all.", looked_at="; ".join(each.text for each in passed))


def _fallen_back(asked: DeviceRequest, source: str, error: TopropeError, first: tuple[str, ...]) -> Choice:
    """Take another device than the one asked for, with one warning for each reason."""
    choice = _automatic(source, first)
    reason = error.what.rstrip(".")
    key = (str(asked), str(choice.device), reason)
    if key not in _told:
        _told.add(key)
        warnings.warn(
            f"{asked} was asked for ({source}) and {choice.device} is used: {reason}",
            FallbackWarning,
            stacklevel=_outside(),
        )
    others = (each for each in choice.passed_over if each not in reason)  # the reason has its own kind's already
    return Choice(choice.device, str(asked), source, (reason, *others))


def _outside() -> int:
    """Number of calls from the caller up to the program that called toprope."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_TOPROPE):
        level, frame = level + 1, frame.f_back
    return level


def _may_fall_back(fallback: bool | None) -> bool:
    return Settings.load().fallback if fallback is None else fallback


def _with_source(error: TopropeError, source: str) -> TopropeError:
    """The error, which also names the setting that asked; an argument is seen in the traceback."""
    if source in ("argument", "context"):
        return error
    looked_at = "; ".join(part for part in (f"asked for by {source}", error.looked_at) if part)
    return type(error)(error.what, looked_at, error.do, error.code)


def _no_index(cls: type[Device], index: int, count: int) -> DeviceIndexError:
    """The error for an index beyond the devices that the process sees."""
    names = [str(_device(cls.kind, each)) for each in range(count)]
    shown = names if len(names) <= 4 else [names[0], names[1], "...", names[-1]]
    number = f"{len(names)} device{'s' if len(names) > 1 else ''}"
    widen = f", or widen {cls.mask_variable} before the program starts" if os.environ.get(cls.mask_variable) else ""
    return DeviceIndexError(
        f"there is no {cls.kind}:{index}, the program sees {number} ({', '.join(shown)}).",
        looked_at=cls.facts(),
        do=f"use {' or '.join(shown) if len(shown) < 4 else f'{names[0]} to {names[-1]}'}{widen}",
        code=cls.index_code,
    )


def _check_mask(kind: str) -> None:
    """Refuse to go on where devices of this kind were granted under another mask."""
    if kind in _masks:
        variable, mask = device_class(kind).mask_variable, _masks[kind]
        if variable and os.environ.get(variable) != mask:
            raise _late_mask(variable, mask)


def _late_mask(variable: str, mask: str | None) -> DeviceMaskError:
    """The error for a mask that was changed after the process had used a card."""

    def shown(text: str | None) -> str:
        return "not set" if text is None else repr(text)

    return DeviceMaskError(
        f"{variable} was changed after this process was given one of its devices.",
        looked_at=f"{variable}: {shown(mask)} at first, now {shown(os.environ.get(variable))}",
        do=f"set {variable} before the program starts, or in the environment of a new process",
    )


def _others_than(kind: str) -> str:
    """The names of what is there, for an error about what is not."""
    return ", ".join(each.kind for each in survey() if each.state is State.WORKS and each.kind != kind)


def _said(choice: Choice) -> Choice:
    key = (str(choice.device), choice.source)
    if key not in _told:
        _told.add(key)
        _log.info("device %s", choice.text)
    return choice

"""Failures of the simulated card on demand, to test a program's reaction to them.

Each function is a context manager; the card fails so inside the block. For a program that is not to be changed,
TOPROPE_SIM_FAULTS names the same functions, separated by semicolons, for the whole process:
`TOPROPE_SIM_FAULTS="fail(aten::add, 507015, after=3); slow_link(2GB)"`.

Users' page: docs/faults.md. The card's side is csrc/core/faults.h. Tests: tests/sim/simulated/test_faults.py, and
tests/sim/test_faults_setting.py for the variable.
"""

from __future__ import annotations

import ast
import atexit
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from toprope.errors import SettingError, SimulatorError, UsageError
from toprope.sim.dtypes import NUMBERS, bits
from toprope.sizes import parse_size
from toprope.support.refusals import VENDOR_NAMES

__all__ = ["fail", "out_of_memory", "parse", "refuse", "slow_link", "unhealthy"]


def _native() -> Any:
    from toprope.sim.native import native
    from toprope.sim.state import installed

    if installed() is None:
        raise SimulatorError("there is no simulated card that could fail.", do="call toprope.sim.install() first")
    return native()


def _name(operator: str) -> str:
    """The full name of an operator: "add" and "aten::add" mean the same."""
    return operator if "::" in operator else f"aten::{operator}"


@contextmanager
def refuse(operator: str, dtype: str | None = None) -> Iterator[None]:
    """The chip has no kernel for the operator, for one dtype or for all: the vendor's EZ1001, raised by the call.

    Args:
        operator: name such as "mm" or "aten::mm".
        dtype: name such as "bfloat16" or "torch.bfloat16"; None for every dtype.
    """
    library = _native()
    wanted = None if dtype is None else str(dtype).removeprefix("torch.")
    if wanted is not None and wanted not in NUMBERS:
        raise UsageError(f"{dtype!r} is not a dtype of torch.", do="write it as torch does: float64, bfloat16, int8")
    name = _name(operator).encode()
    dtypes = NUMBERS if wanted is None else (wanted,)
    before = library.refused_dtypes(name)
    for each in dtypes:
        text = (
            f"EZ1001: [PID: {os.getpid()}] {_name(operator)} not implemented for "
            f"{VENDOR_NAMES.get(each, f'DT_{each.upper()}')}"
            " (a fault that was asked for: toprope.sim.faults.refuse)"
        )
        library.set_refusal(name, NUMBERS[each], text.encode())
    library.refuse_dtypes(name, before | bits(dtypes))
    try:
        yield
    finally:
        library.refuse_dtypes(name, before)


@contextmanager
def fail(operator: str, code: int, after: int = 0) -> Iterator[None]:
    """The operator fails on the card with a code of the vendor's, such as 507015.

    As on a card, the call itself returns: the failure is reported when the host next waits for the stream, or by the
    call itself with ASCEND_LAUNCH_BLOCKING=1.

    Args:
        operator: name such as "mm" or "aten::mm".
        code: the code to fail with.
        after: calls that succeed first.
    """
    if code == 0 or after < 0:
        raise UsageError(f"fail({operator!r}, {code}, after={after}) is no failure.", do="give a code, and after >= 0")
    library = _native()
    library.fail_operator(_name(operator).encode(), code, after)
    try:
        yield
    finally:
        library.fail_operator(_name(operator).encode(), 0, 0)


@contextmanager
def out_of_memory(after: int = 0) -> Iterator[None]:
    """One allocation on a card fails as if the card were full.

    Args:
        after: allocations that succeed first.
    """
    if after < 0:
        raise UsageError(f"after={after} is not a number of allocations.", do="give 0 or more")
    library = _native()
    library.fail_allocation(after)
    try:
        yield
    finally:
        library.fail_allocation(-1)


@contextmanager
def unhealthy(card: int, code: int = 507033) -> Iterator[None]:
    """A card is not well: whatever uses it fails, in every process of the run.

    Args:
        card: its number in this process.
        code: the code it fails with; 507033 is the failure to start a device.
    """
    library = _native()
    physical = library.physical_id(card)
    if physical < 0:
        raise UsageError(
            f"there is no npu:{card} that could be unhealthy.",
            f"{library.device_count()} visible cards",
            "name one of them",
        )
    library.set_health_of_card(physical, code)
    try:
        yield
    finally:
        library.set_health_of_card(physical, 0)


@contextmanager
def slow_link(per_second: int | str) -> Iterator[None]:
    """Make copies between the host and the cards take as long as over a link of this speed.

    Args:
        per_second: bytes a second, or a size such as "2GB".
    """
    library = _native()
    library.slow_link(1e9 / parse_size(per_second))
    try:
        yield
    finally:
        library.slow_link(0.0)


_FUNCTIONS: dict[str, Callable[..., AbstractContextManager[None]]] = {
    function.__name__: function for function in (fail, out_of_memory, refuse, slow_link, unhealthy)
}


def parse(text: str) -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """The calls that TOPROPE_SIM_FAULTS spells: name, arguments, keywords. Words need no quotes.

    Raises:
        SettingError: the text does not spell calls of this module's functions.
    """
    calls = []
    for part in filter(None, (piece.strip() for piece in text.split(";"))):
        name, bracket, rest = part.partition("(")
        if name.strip() not in _FUNCTIONS or not bracket or not rest.rstrip().endswith(")"):
            raise _malformed(text, part)
        arguments: list[Any] = []
        keywords: dict[str, Any] = {}
        for argument in filter(None, (piece.strip() for piece in rest.rstrip()[:-1].split(","))):
            key, equals, value = argument.partition("=")
            if equals and not key.strip().isidentifier():
                raise _malformed(text, part)
            if equals:
                keywords[key.strip()] = _value(value.strip())
            else:
                arguments.append(_value(argument))
        calls.append((name.strip(), tuple(arguments), keywords))
    return calls


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _malformed(text: str, part: str) -> SettingError:
    return SettingError(
        f"TOPROPE_SIM_FAULTS={text!r} cannot be read at {part!r}.",
        do=f"write calls of {', '.join(sorted(_FUNCTIONS))}, separated by semicolons: fail(aten::add, 507015, after=3)",
    )


_for_the_process = ExitStack()


def enter_from_environment() -> None:
    """Let the failures that TOPROPE_SIM_FAULTS spells begin; they stay until the process ends.

    Raises:
        SettingError: the variable cannot be read, or its calls have the wrong arguments.
    """
    text = os.environ.get("TOPROPE_SIM_FAULTS", "")
    if text:
        atexit.register(_for_the_process.close)  # later the interpreter has nothing left to end them with
    for name, arguments, keywords in parse(text):
        try:
            _for_the_process.enter_context(_FUNCTIONS[name](*arguments, **keywords))
        except (TypeError, UsageError) as error:
            raise SettingError(f"TOPROPE_SIM_FAULTS={text!r}: {name}: {error}") from error

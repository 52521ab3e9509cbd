"""Kernels of one's own on the simulated card, `toprope.sim.launch`: queued work that takes cores of a stream.

For programs that study how streams compete for cores (docs/simulator.md, examples/core_deadlock.py). The C++ scheduler
grants the cores: csrc/core/kernels.h has the disciplines in the same order, csrc/core/deadlock.cpp writes the lines
that `kernels` reads. Tests: tests/sim/simulated/test_kernels_alone.py and test_kernels.py.
"""

from __future__ import annotations

import atexit
import ctypes
import itertools
import math
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toprope.errors import SimulatorError, UsageError
from toprope.support.operator_kinds import Blocks, OperatorKind

if TYPE_CHECKING:
    import torch

    from toprope.sim.native import Native

__all__ = ["Collective", "KernelState", "collective", "dispatch", "kernels", "launch"]

_KINDS = ("cube", "vector", "mix")
_DISCIPLINES = ("D0", "D0b", "D1", "D2")
_BUDGETS = ("opbase", "strict")
_LONGEST_NAME = 40
_AICORE_ABNORMAL, _VECTOR_CORE_ABNORMAL = 507015, 507035
_AT_EXIT = 2.0
"""Seconds that kernels under way get when the process ends."""

_rules = {"discipline": "D0b", "budget": "opbase"}
_bodies: dict[int, tuple[Callable[[], object], int]] = {}
_keys = itertools.count(1)
_ready: list[Any] = []


class Collective:
    """A communicator of simulated cards of this process. Made by `collective`.

    Attributes:
        name: its name.
        cards: numbers of its cards, by rank.
    """

    def __init__(self, name: str, cards: tuple[int, ...], number: int) -> None:
        self.name, self.cards = name, cards
        self._number = number

    def __repr__(self) -> str:
        return f"Collective({self.name!r}, cards={list(self.cards)})"


@dataclass(frozen=True, slots=True)
class KernelState:
    """A kernel that was launched and has not ended.

    Attributes:
        card, stream: where.
        name: its name.
        cube, vector: cores that it was launched on.
        held_cube, held_vector: cores that it holds.
        state: "queued", "waits for cores", "waits for peers", "runs" or "failed".
        waits_for: what it waits for, as a sentence; empty where it runs.
    """

    card: int
    stream: int
    name: str
    cube: int
    vector: int
    held_cube: int
    held_vector: int
    state: str
    waits_for: str


def _library() -> Native:
    from toprope.sim.native import native
    from toprope.sim.state import installed

    if installed() is None:
        raise SimulatorError("there is no simulated card to run a kernel on.", do="call toprope.sim.install() first")
    return native()


def _named(name: str) -> bytes:
    if not name or not name.isprintable() or len(name.encode()) > _LONGEST_NAME:
        raise UsageError(f"{name!r} is no name.", do=f"give 1 to {_LONGEST_NAME} bytes that can be printed")
    return name.encode()


def collective(name: str, cards: Sequence[int]) -> Collective:
    """A communicator: kernels that are launched as its collectives finish together on all of its cards.

    The first launch on each card is one collective, the second launches are the next, and so on.

    Args:
        name: its name, up to 24 bytes.
        cards: numbers of its cards, by rank.

    Raises:
        UsageError: no name, or cards that are not there or listed twice.
    """
    library = _library()
    encoded, chosen = _named(name), tuple(cards)
    if len(encoded) > 24:
        raise UsageError(f"{name!r} is too long for a communicator.", do="give at most 24 bytes")
    there = library.device_count()
    if not chosen or len(set(chosen)) < len(chosen) or not all(card in range(there) for card in chosen):
        raise UsageError(
            f"{list(cards)} are no cards of a communicator.", f"{there} visible cards", "name some of them, each once"
        )
    library.use_cards()
    number = library.make_communicator(encoded, (ctypes.c_int * len(chosen))(*chosen), len(chosen))
    made = Collective(name, chosen, number)
    weakref.finalize(made, library.forget_communicator, number)
    return made


def launch(
    kind: str,
    cube: int | None = None,
    vector: int | None = None,
    body: Callable[[], object] | None = None,
    stream: torch.Stream | None = None,
    *,
    name: str | None = None,
    sync_all: bool = False,
    collective: Collective | None = None,
    microseconds: float | None = None,
) -> None:
    """Queue a kernel, which takes cores of its card before it runs and gives them back when it has ended.

    It gets what it wishes for, at most what the limit of its stream allows now. A kernel whose blocks do not wait for
    each other runs as soon as it has one of them; with `sync_all`, or as a member of a collective, it needs all of them
    at once.

    A kernel that can never go on, because it and others hold what the others wait for, fails at once with all of them:
    the next synchronisation raises 507034 (507014 where only cube cores are concerned), and says who waits for whom.

    Args:
        kind: "vector", "cube" or "mix", whose blocks have both kinds of core.
        cube: cube cores wished for; None for all that are allowed ("cube"), or one for each two vector cores ("mix").
        vector: vector cores, likewise. The cores of a "mix" are in the ratio of one block: 8 and 16 are 8 of 1 and 2.
        body: the work, called in the stream's thread while the cores are held. What it raises fails the stream.
        stream: the stream; None for the current one.
        name: what reports and traces call it, up to 40 bytes; None for its kind.
        sync_all: all blocks wait for each other (SyncAll), so that they need their cores at the same time.
        collective: the communicator of which this is the next collective.
        microseconds: how long it lasts at least, on the host's clock.

    Raises:
        UsageError: a kind, a number or a card that cannot be; cores fewer than a block's where the budget is strict.
        RuntimeError: the vendor's, where there is no such card or the process cannot use one.

    Example:
        >>> import toprope.sim
        >>> toprope.sim.install("910B1")
        >>> import torch
        >>> toprope.sim.launch("vector", vector=48, sync_all=True, name="NonZero")
        >>> torch.npu.synchronize()
    """
    library = _library()
    import torch

    from toprope.sim.npu._state import chip, lazy_init
    from toprope.sim.npu.streams import current_stream

    lazy_init()
    current = current_stream()  # torch itself takes note that a card is in use: else it would not wait for it
    if stream is None:
        stream = current
    if not isinstance(stream, torch.Stream) or stream.device.type != "npu":
        raise UsageError(f"{stream!r} is no stream of a card.", do="give a torch.npu.Stream, or None")
    card = stream.device_index
    if collective is not None and card not in collective.cards:
        raise UsageError(f"{collective} has no member on card {card}.", do="launch it on a stream of one of its cards")
    if microseconds is not None and not 0 <= microseconds < math.inf:
        raise UsageError(f"a kernel cannot take {microseconds} microseconds.")
    label = _named(name or kind)
    limits = (ctypes.c_int * 2)()
    library.limits(card, stream.stream_id, limits)
    given = _granted(kind, cube, vector, (limits[0], limits[1]), chip().name, label.decode())
    key = 0
    if body is not None:
        key = next(_keys)
        _bodies[key] = body, _VECTOR_CORE_ABNORMAL if given.vector and not given.cube else _AICORE_ABNORMAL
    status = library.launch_kernel(
        card, stream.stream_id, label, given.cube, given.vector, int(sync_all),
        0 if collective is None else collective._number, microseconds or 0.0, _body(key), key,
    )  # fmt: skip
    if status:
        _bodies.pop(key, None)
        raise UsageError(f"the kernel cannot be launched ({status}).", f"card {card}, stream {stream.stream_id}")


def _granted(kind: str, cube: int | None, vector: int | None, limits: tuple[int, int], chip: str, name: str) -> Blocks:
    """The blocks of a kernel: its wish, within the limits."""
    if kind not in _KINDS:
        raise UsageError(f"{kind!r} is no kind of kernel.", do=f"give one of {', '.join(_KINDS)}")
    wishes = (cube, vector)
    for wish in wishes:
        if wish is not None and (isinstance(wish, bool) or not isinstance(wish, int) or wish < 1):
            raise UsageError(f"{wish!r} is not a number of cores.", do="give 1 or more, or leave it out")
    if (kind == "vector" and cube is not None) or (kind == "cube" and vector is not None):
        raise UsageError(f"a kernel of kind {kind!r} has cores of that kind alone.", do='use kind "mix" for both')
    if kind == "mix":
        ratio, wanted = _mixed(cube, vector)
    else:
        ratio, wanted = ((1, 0), cube) if kind == "cube" else ((0, 1), vector)
    given = OperatorKind(kind, ratio).blocks(limits, chip, wanted)
    if given.exceeds:
        text = (
            f"{name} takes {given.cube} cube and {given.vector} vector cores, its stream allows {limits[0]} and"
            f" {limits[1]}."
        )
        if _rules["budget"] == "strict":
            raise UsageError(text, do="raise the limit (torch.npu.set_stream_limit), or launch it on another stream")
        warnings.warn(f"{text} One block is the least that a kernel runs on.", stacklevel=3)
    return given


def _mixed(cube: int | None, vector: int | None) -> tuple[tuple[int, int], int | None]:
    """Cores of one block of a mixed kernel, and how many blocks it wishes for."""
    if cube is None or vector is None:
        return (1, 2), cube if vector is None else max(vector // 2, 1)
    blocks = math.gcd(cube, vector)
    return (cube // blocks, vector // blocks), blocks


def _body(key: int) -> Any:
    """The C function that runs bodies; a null pointer for a kernel without one."""
    from toprope.sim.native import BODY

    if not key:
        return BODY(0)
    if not _ready:
        _ready.append(BODY(_run))
        atexit.register(_end_kernels)
    return _ready[0]


def _run(key: int, run: int) -> int:
    """Run a body, or drop it. Called in the thread of its stream."""
    body, code = _bodies.pop(key)
    if not run:
        return 0
    try:
        body()
    except BaseException as error:
        _library().explain_failure(f"its kernel's body raised {type(error).__name__}: {error}".encode())
        return code
    return 0


def _end_kernels() -> None:
    """End kernels before Python does: a body that is called afterwards finds no interpreter."""
    library = _library()
    end = time.monotonic() + _AT_EXIT
    while _bodies and time.monotonic() < end and any(each.state in ("runs", "queued") for each in kernels()):
        time.sleep(0.002)
    for card in {each.card for each in kernels()}:
        library.stop_device(card)
    while _bodies and time.monotonic() < end + _AT_EXIT:
        time.sleep(0.002)


def kernels() -> list[KernelState]:
    """The kernels of this process that were launched and have not ended, in the order of their launches."""
    library = _library()
    if library.forked_after_use():
        return []
    size = library.kernels(None, 0)
    while True:
        buffer = ctypes.create_string_buffer(size + 1)
        needed = library.kernels(buffer, size)
        if needed <= size:
            return [_state(line) for line in buffer.raw[:needed].decode().splitlines()]
        size = 2 * needed


def _state(line: str) -> KernelState:
    card, stream, name, cube, vector, held_cube, held_vector, state, waits_for = line.split("\t")
    numbers = int(cube), int(vector), int(held_cube), int(held_vector)
    return KernelState(int(card), int(stream), name, *numbers, state, waits_for)


@contextmanager
def dispatch(discipline: str | None = None, *, budget: str | None = None) -> Iterator[None]:
    """Other rules inside the block, for experiments: what real cards do is not documented.

    Args:
        discipline: how a card hands out idle cores to kernels that wait: "D0b" (first come, first served, as many as
            are idle; what a kernel has it keeps; the rule outside of blocks), "D0" (block by block in turn), "D1" (all
            or nothing, and the first that does not fit keeps the others from the idle cores) or "D2" (all or nothing).
        budget: what happens to a kernel whose limits do not leave it one block: "opbase" (it runs on one, with a
            warning; the rule outside of blocks) or "strict" (the launch is refused).

    Raises:
        UsageError: there is no such rule.
    """
    library = _library()
    wanted = {"discipline": (discipline, _DISCIPLINES), "budget": (budget, _BUDGETS)}
    for what, (value, known) in wanted.items():
        if value is not None and value not in known:
            raise UsageError(f"there is no {what} {value!r}.", do=f"give one of {', '.join(known)}")
    before = dict(_rules)
    _rules.update({what: value for what, (value, _) in wanted.items() if value is not None})
    library.set_discipline(_DISCIPLINES.index(_rules["discipline"]))
    try:
        yield
    finally:
        _rules.update(before)
        library.set_discipline(_DISCIPLINES.index(before["discipline"]))

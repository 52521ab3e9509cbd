"""Recording of a rehearsal: hooks that say what the memory of the cards is for and where a step begins.

Installed by `toprope.sim.rehearse`, the pytest plugin, and run_record.py in a process of `toprope run --report`; the
C++ core keeps the record. Kinds of memory are decided as follows; memory that no rule covers is "others":

- weights: parameters and buffers of modules whose forward pass was called, or that exist when an allocation fails
- gradients: what is in `.grad` of those parameters
- optimizer: allocated during an optimizer's step, or found in its state
- activations: allocated while gradients are recorded, from the beginning of the outermost module's forward pass to the
  backward pass, and not copied from the host; in a backward pass what is computed again (checkpointing)

A step of training is a step of the optimizer that made the first one. A step of inference is a call of an outermost
module with parameters and without gradients; with gradients it counts where no optimizer makes a step.

Numbers of recorders and steps are those of csrc/core/rehearsal.h. Tests: tests/sim/simulated/test_rehearsal.py.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import ref

from toprope.errors import EnvironmentProblem, SimulatorError
from toprope.sim.metrics import counters
from toprope.sim.metrics.counters import CardCounters, Counters, HostSite, Site
from toprope.sim.rehearsal import module_numbers, record_file
from toprope.sim.spec import SimSpec

if TYPE_CHECKING:
    from torch import Tensor

    from toprope.sim.native import Native
    from toprope.sim.rehearsal.facts import Rehearsal
    from toprope.sim.tracing.timing import Timing

__all__ = ["VARIABLE", "Rehearsing", "begin_of_run", "rehearse", "rehearse_test", "to_come"]

_log = logging.getLogger("toprope")

VARIABLE = "TOPROPE_REHEARSE"
"""Set in the processes of a run that is rehearsed, to the bytes of the smallest block with a line of its own."""

_ALL_EVENTS = 1 << 16
"""Copies back and waits whose places are all looked up where a report is asked for."""

_OF_RUN, _OF_BLOCK, _OF_TEST = range(3)
_WEIGHTS, _GRADIENTS, _OPTIMIZER = map(record_file.KINDS.index, ("weights", "gradients", "optimizer"))
_TRAINING, _INFERENCE, _FORWARD = range(3)


def begin_of_run(library: Native, stem: Path) -> None:
    """Record this process for the report of its run, next to its counters."""
    smallest = os.environ.get(VARIABLE, "")
    if not smallest.isdigit():
        return
    error = library.start_rehearsal(_OF_RUN, int(smallest), str(stem.with_suffix(record_file.SUFFIX)).encode())
    if error:
        raise EnvironmentProblem(
            "the rehearsal of this run cannot be recorded.",
            f"{stem.parent}: {os.strerror(error)}",
            "make the folder named by TOPROPE_RUN_DIR writable, or unset the variable",
        )
    if smallest == "0":
        library.look_up(_ALL_EVENTS)
    hooks = _Hooks.of_process(library)
    hooks.add()
    if SimSpec.parse(os.environ.get("TOPROPE_SIM", "") or "910B3").numerics == "card":
        hooks.look_at_numbers(_OF_RUN, stem.with_suffix(module_numbers.SUFFIX))


class Rehearsing:
    """A rehearsal inside the process: its facts so far, or those of the block once it has ended."""

    def __init__(self, library: Native, spec: SimSpec, address: int) -> None:
        self._library = library
        self._spec = spec
        self._address = address
        self._before = _figures(library)
        self._facts: Rehearsal | None = None

    def so_far(self, timing: Timing | None = None) -> Rehearsal:
        """The facts until now.

        Args:
            timing: how long the card would take, which is known once the block has ended.
        """
        if self._facts is not None:
            return self._facts
        from toprope.sim.rehearsal.facts import facts_of

        after = _figures(self._library)
        record = record_file.parse(ctypes.string_at(self._address, record_file.SIZE))
        assert record is not None  # the core wrote it when the block began
        return facts_of([_difference(self._before, after)], {after.pid: record}, self._spec, timing)

    @property
    def facts(self) -> Rehearsal:
        """The facts.

        Raises:
            SimulatorError: the block has not ended yet.
        """
        if self._facts is None:
            raise SimulatorError("the rehearsal is still being recorded.", do="read it after the `with` block")
        return self._facts

    @property
    def verdict(self) -> str:
        """The answer in a few words."""
        return self.facts.verdict

    @property
    def timing(self) -> Timing | None:
        """Time that the card would take, an estimate; None where a trace of the program ended inside the block."""
        return self.facts.timing

    @property
    def peak(self) -> int:
        """Most bytes that tensors held at once on any card."""
        return self.facts.peak

    @property
    def syncs(self) -> int:
        """Times that the host waited for a card."""
        return self.facts.syncs


@contextmanager
def rehearse() -> Iterator[Rehearsing]:
    """Record what the block does to the simulated cards, as `toprope run --report` does for a program.

    Peaks of memory include what was in use when the block began.

    Raises:
        SimulatorError: there is no simulated card, or another `rehearse` is running.

    Example:
        >>> import torch, toprope.sim
        >>> toprope.sim.install("910B3")
        >>> with toprope.sim.rehearse() as r:
        ...     total = torch.ones(4, device="npu").sum().item()
        >>> r.syncs, r.verdict
        (1, 'runs on the card')
    """
    yield from _recorded(_OF_BLOCK)


@contextmanager
def rehearse_test() -> Iterator[Rehearsing]:
    """As `rehearse`, for a whole test, in which there may be a `rehearse`."""
    yield from _recorded(_OF_TEST)


def _recorded(which: int) -> Iterator[Rehearsing]:
    from toprope.sim.native import native
    from toprope.sim.state import installed
    from toprope.sim.tracing.timing import timing_of
    from toprope.sim.tracing.tracer import MEMORY, TIMED, window

    spec = installed()
    if spec is None:
        raise SimulatorError("there is no simulated card to rehearse on.", do="call toprope.sim.install() first")
    library = native()
    if error := library.start_rehearsal(which, 0, None):
        why = "another rehearsal is running in this process." if error == errno.EBUSY else os.strerror(error)
        raise SimulatorError(f"the rehearsal cannot be recorded: {why}", do="end the other one first")
    former = library.look_up(_ALL_EVENTS)
    hooks = _Hooks.of_process(library)
    hooks.add()
    if spec.numerics == "card":
        hooks.look_at_numbers(which)
    deviations = hooks.deviations
    known = len(deviations.found) if deviations is not None else 0
    one = Rehearsing(library, spec, library.rehearsal(which))
    part = None
    try:
        with window(library, most=TIMED, without=MEMORY) as part:
            yield one
    finally:
        facts = one.so_far(None if part is None or part.trace is None else timing_of(part.trace))
        if deviations is not None:
            bad = tuple(each for each in deviations.bad if each.kind in facts.bad_numbers)
            facts = replace(facts, deviations=tuple(deviations.found[known:]), bad_modules=bad)
        one._facts = facts
        library.stop_rehearsal(which)
        hooks.remove()
        library.look_up_as_before(former)


def _figures(library: Native) -> Counters:
    found = counters.parse(ctypes.string_at(library.counters(), counters.SIZE))
    assert found is not None  # a card is installed
    return found


def _difference(before: Counters, after: Counters) -> Counters:
    """Figures between two readings of the counters of one process; peaks are those of the process."""
    operators = {name: number - before.operators.get(name, 0) for name, number in after.operators.items()}
    sites = {site.number: site for site in before.sites}
    lacks = {(one.name, one.lack, one.dtype): one.times for one in before.lacks}
    on_host = {(one.operation, one.file, one.line): one for one in before.host_sites}
    cards = {card.index: card for card in before.cards}
    return replace(
        _since(before, after, *_FIGURES),
        operators={name: number for name, number in operators.items() if number},
        sites=tuple(_since(sites.get(site.number), site, "back", "waits") for site in after.sites),
        lacks=tuple(
            replace(one, times=one.times - lacks.get((one.name, one.lack, one.dtype), 0)) for one in after.lacks
        ),
        cards=tuple(_since(cards.get(card.index), card, "oom_retries", "ooms") for card in after.cards),
        host_sites=tuple(
            one
            for site in after.host_sites
            if (one := _since(on_host.get((site.operation, site.file, site.line)), site, *_COPIED)).times
        ),
    )


_FIGURES = (
    "copies_to_card", "bytes_to_card", "copies_from_card", "bytes_from_card", "copies_between", "bytes_between",
    "synchronisations", "operator_calls",
)  # fmt: skip
_Reading = TypeVar("_Reading", Counters, Site, HostSite, CardCounters)
_COPIED = ("times", "bytes_to_host", "bytes_back")


def _since(before: _Reading | None, after: _Reading, *figures: str) -> _Reading:
    """The later reading with these figures as they have grown; all of it where there was no earlier one."""
    if before is None:
        return after
    return replace(after, **{name: getattr(after, name) - getattr(before, name) for name in figures})


def _program_has_hooks() -> bool:
    """Return True if the program has hooks on all modules: the rehearsals' own is one before forward passes."""
    from torch.nn.modules import module

    kinds = ("backward_pre_hooks", "backward_hooks", "forward_hooks", "forward_hooks_always_called")
    return len(module._global_forward_pre_hooks) > 1 or any(getattr(module, f"_global_{kind}", None) for kind in kinds)


def _harmless(hook: Callable[..., None]) -> Callable[..., None]:
    """Let a hook end without an error, whatever the program's own classes do: less is recorded then."""

    @wraps(hook)
    def run(*arguments: Any) -> None:
        try:
            hook(*arguments)
        except Exception:
            _log.debug("a hook of the rehearsal failed", exc_info=True)

    return run


_COPIES = {
    "Adadelta": ("square_avg", "acc_delta"),
    "Adam": ("exp_avg", "exp_avg_sq"),
    "AdamW": ("exp_avg", "exp_avg_sq"),
    "Adamax": ("exp_avg", "exp_inf"),
    "NAdam": ("exp_avg", "exp_avg_sq"),
    "RAdam": ("exp_avg", "exp_avg_sq"),
    "RMSprop": ("square_avg",),
    "Rprop": ("prev", "step_size"),
}
"""torch's optimizers that make states of a parameter's size in the first step, and these states."""
_MORE_COPIES = {"amsgrad": ("Adam", "AdamW"), "momentum": ("SGD", "RMSprop"), "centered": ("RMSprop",)}
"""Options that add one such state, and the optimizers that have them."""


def to_come(optimizers: Sequence[Any]) -> dict[int, tuple[int, int]]:
    """Bytes of gradients and states that the optimizers do not have yet, by card: those that a step will make.

    States of optimizers that are not torch's are not known, and count as nothing.
    """
    found: dict[int, tuple[int, int]] = {}
    seen: set[int] = set()
    for optimizer in optimizers:
        # its class, or the one of torch's that it is derived from
        name = next(
            (kind.__name__ for kind in type(optimizer).__mro__ if kind.__module__.startswith("torch.optim.")), ""
        )
        for group in optimizer.param_groups:
            copies = len(_COPIES.get(name, ()))
            copies += sum(bool(group.get(option)) for option, names in _MORE_COPIES.items() if name in names)
            for parameter in group["params"]:
                tensor = getattr(parameter, "_local_tensor", parameter)
                if id(parameter) in seen or tensor.device.type != "npu" or not parameter.requires_grad:
                    continue
                seen.add(id(parameter))
                gradients, states = found.get(tensor.device.index, (0, 0))
                found[tensor.device.index] = (
                    gradients + (tensor.nbytes if parameter.grad is None else 0),
                    states + (0 if optimizer.state.get(parameter) else copies * tensor.nbytes),
                )
    return found


class _Hooks:
    """The hooks of one process in torch, shared by the rehearsals that are recorded there."""

    _of_process: _Hooks | None = None

    @classmethod
    def of_process(cls, library: Native) -> _Hooks:
        """The hooks of this process."""
        if cls._of_process is None:
            cls._of_process = cls(library)
        return cls._of_process

    def __init__(self, library: Native) -> None:
        self._library = library
        self._users = 0
        self._handles: list[Any] = []
        self._asked: Any = None
        # WeakIdKeyDictionary: tensors, and modules and optimizers of the program, may compare in ways of their own
        self._calls: Any = None
        """Calls of each outermost module; -1 for a module inside another."""
        self._optimizer: Any = None
        self._stepped: Any = None
        self._with_hook: Any = None
        self._ask = ctypes.CFUNCTYPE(None)(self._mark_all)
        self.deviations: module_numbers.Deviations | None = None

    def look_at_numbers(self, which: int, path: Path | None = None) -> None:
        """Look for NaN and overflows, and compute modules again in float32, until the hooks are removed.

        Args:
            which: the rehearsal that asks first.
            path: file that keeps what is found.
        """
        from torch.nn.modules import module

        if self.deviations is not None:
            return
        address = self._library.rehearsal(which)
        self.deviations = module_numbers.Deviations(path, lambda: record_file.noted_numbers(address))
        self._library.watch_numbers(1)
        self._handles.append(module.register_module_forward_hook(self._after_forward, with_kwargs=True))

    @_harmless
    def _after_forward(self, module: Any, args: Any, kwargs: Any, output: Any) -> None:
        import torch

        if self.deviations is not None and not torch.compiler.is_compiling():
            self.deviations.after_forward(module, args, kwargs, output)

    def add(self) -> None:
        """Add them, for one more rehearsal."""
        self._users += 1
        if self._users > 1:
            return
        from torch.nn.modules import module
        from torch.optim.optimizer import (
            register_optimizer_step_post_hook,
            register_optimizer_step_pre_hook,
        )
        from torch.utils.weak import WeakIdKeyDictionary

        self._calls, self._stepped, self._with_hook = (WeakIdKeyDictionary() for _ in range(3))
        self._library.watch_memory(ctypes.cast(self._ask, ctypes.c_void_p))
        self._handles = [
            module.register_module_forward_pre_hook(self._before_forward),
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]
        # torch.compile alone asks it, to warn of hooks on all modules: it is to see the program's and not this one
        self._asked = module._has_any_global_hook
        module._has_any_global_hook = _program_has_hooks

    def remove(self) -> None:
        """Remove them, unless another rehearsal needs them."""
        self._users -= 1
        if self._users:
            return
        from torch.nn.modules import module

        self._library.watch_memory(None)
        self._library.watch_numbers(0)
        self.deviations = None
        module._has_any_global_hook = self._asked
        for handle in (*self._handles, *(self._with_hook or {}).values()):
            handle.remove()
        self._handles, self._optimizer = [], None
        self._calls = self._stepped = self._with_hook = None

    @_harmless
    def _before_forward(self, module: Any, _: Any) -> None:
        import torch

        if torch.compiler.is_compiling():
            return
        if (number := self._calls.get(module, 0)) < 0:
            if self.deviations is not None:
                self.deviations.before_forward(module, outermost=False)
            return
        if number == 0:
            for inner in module.modules():
                self._calls[inner] = -1
            if self.deviations is not None:
                self.deviations.name_all(module)
        if self.deviations is not None:
            self.deviations.before_forward(module, outermost=True)
        self._calls[module] = number + 1
        if next(module.parameters(), None) is None:
            return  # a loss, an activation function
        if number & (number - 1) == 0:  # at calls 0, 1, 2, 4, 8, ...: modules seldom get other parameters
            self._mark_weights(module)
        with_gradients = torch.is_grad_enabled()
        if with_gradients:
            self._library.watch_forward(1)
        self._library.note_step(_FORWARD if with_gradients else _INFERENCE)

    @_harmless
    def _before_step(self, optimizer: Any, *_: Any) -> None:
        if self._optimizer is None or self._optimizer() is None:
            self._optimizer = ref(optimizer)
        self._library.watch_step(1)

    @_harmless
    def _after_step(self, optimizer: Any, *_: Any) -> None:
        self._library.watch_step(0)
        if self._optimizer is not None and self._optimizer() is optimizer:
            self._library.note_step(_TRAINING)
        if optimizer not in self._stepped:
            self._stepped[optimizer] = True
            self._mark_states(optimizer)

    def _mark_weights(self, module: Any) -> None:
        from torch.nn.parameter import is_lazy

        for tensor in (*module.parameters(), *module.buffers()):
            if is_lazy(tensor):
                continue
            self._mark(tensor, _WEIGHTS)
            if tensor.requires_grad and tensor.is_leaf and self._with_hook is not None:
                if tensor not in self._with_hook:
                    self._with_hook[tensor] = tensor.register_post_accumulate_grad_hook(self._mark_gradient)
                self._mark_gradient(tensor)

    @_harmless
    def _mark_gradient(self, tensor: Tensor) -> None:
        if tensor.grad is not None:
            self._mark(tensor.grad, _GRADIENTS)

    def _mark_states(self, optimizer: Any) -> None:
        import torch

        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._mark(parameter, _WEIGHTS)
                self._mark_gradient(parameter)
        for state in optimizer.state.values():
            for value in state.values() if isinstance(state, dict) else ():
                if isinstance(value, torch.Tensor):
                    self._mark(value, _OPTIMIZER)

    def _mark_all(self) -> None:
        """Look for modules and optimizers among all objects of Python: an allocation is about to fail."""
        import torch

        optimizers = []
        for one in gc.get_objects():
            try:
                kind = type(one)  # isinstance would ask proxies, which may warn or load what they are for
                if issubclass(kind, torch.nn.Module):
                    self._mark_weights(one)
                elif issubclass(kind, torch.optim.Optimizer):
                    self._mark_states(one)
                    optimizers.append(one)
            except Exception:
                continue  # an object that is half made, or a proxy whose target is gone
        for device, (gradients, states) in to_come(optimizers).items():
            self._library.note_to_come(device, gradients, states)

    def _mark(self, tensor: Tensor, kind: int) -> None:
        tensor = getattr(tensor, "_local_tensor", tensor)  # of a DTensor, as FSDP2's parameters are
        if tensor.device.type == "npu":
            try:
                self._library.mark_held(tensor.untyped_storage().data_ptr(), kind)
            except Exception:
                return  # it has no storage: sparse, or of a class of the program

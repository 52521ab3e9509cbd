"""Run time of an attached model: which modules run in which thread, and the weights that they need now and next.

The hooks (`engine.hooks`) call `Engine.enter` and `Engine.leave` around every module; autograd comes back for saved
weights through `saved_weights`; `Handle` gives it plans. Weights come through the slots of `prefetch_buffer`, and
move for good by `migrate`. Each thread has a stack of running modules (`Local`); Ctrl-C may leave modules on it that
have stopped, which the next `enter` removes. Relies on private names of torch (`torch._C`: dispatch modes, hooks for
saved tensors, the graph task): look at them for each new release. Tests: tests/tiers/test_tiers_attach.py,
tests/tiers/test_tiers_ring.py, tests/tiers/test_tiers_threads.py, tests/tiers/test_tiers_absent.py.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from toprope.device import Device
from toprope.errors import TierAbsentError, TierCapacityError
from toprope.tiers.engine.migrate import Migration
from toprope.tiers.engine.model.model_groups import Model, Weight
from toprope.tiers.engine.prefetch.prefetch_buffer import Holder, Ring, Slot, Unit, outside_transforms
from toprope.tiers.engine.prefetch.trace import Order, Trace
from toprope.tiers.engine.saved_weights import Packing, Reference
from toprope.tiers.plan.model import Plan, Tier, aligned
from toprope.tiers.store.absent import present
from toprope.tiers.store.backing import DiskHome
from toprope.tiers.store.memory import Memory
from toprope.tiers.store.transfer import Transfers, forked

if TYPE_CHECKING:
    from toprope.tiers.engine.prefetch.row_pieces import RowPieces

__all__ = ["DIRECT", "Engine", "Local", "Needs", "Run", "caller", "ended"]


@dataclass(eq=False)
class Needs:
    """Requirements of a module while it runs.

    Attributes:
        name: the module's name.
        weights: the weights that it uses itself.
        group: its group if it is a block; "" for other modules.
        root: True for the model itself, whose runs are steps.
        units: the units of the current plan that have its weights.
    """

    name: str
    weights: list[Weight]
    group: str = ""
    root: bool = False
    units: list[Unit] = field(default_factory=list)


@dataclass(eq=False)
class Run:
    """A running module, or a visit to a module's weights.

    Attributes:
        needs: the module's requirements.
        held: units that were loaded for it.
        frame: the frame that called it; None for a visit, which lasts until `Engine.leave`.
        packs: True if autograd's hooks for saved tensors were registered for it.
    """

    needs: Needs
    held: list[Unit]
    frame: Any
    packs: bool


class Local(threading.local):
    """State of one thread that runs the model: its running modules and the units that it holds."""

    def __init__(self) -> None:
        self.stack: list[Run] = []
        """Running modules, the innermost last."""
        self.holding: dict[Unit, int] = {}
        self.fetching: Unit | None = None
        """The unit that an autograd hook is loading."""
        self.me, self.fetcher = Holder(), Holder()
        """The thread's two holders: its modules, and its autograd hooks."""


_BETWEEN = ("toprope.tiers.engine.", "toprope.tiers.modes.switch", "torch._dynamo.eval_frame")
"""Prefixes of the modules whose frames are between torch's call of a module and `Engine.enter`."""


def _is_traced() -> bool:
    """True if calls are traced, or made with fake tensors, instead of being computed."""
    keys = torch._C._TorchDispatchModeKey
    return torch._C._get_tracing_state() is not None or any(
        torch._C._get_dispatch_mode(each) is not None for each in (keys.FAKE, keys.PROXY)
    )


def caller() -> Any:
    """Find the frame that lasts as long as the module runs whose hook calls this function."""
    frame: Any = sys._getframe(1)
    while frame.f_globals.get("__name__", "").startswith(_BETWEEN):
        frame = frame.f_back
    return frame


def ended(local: Local, frame: Any) -> int:
    """Number of modules at the end of the stack that have stopped: their calling frame is not below `frame` any more.

    This happens after Ctrl-C: torch calls its hooks after errors, but not after a KeyboardInterrupt.
    """
    calls = set()
    while frame is not None:
        calls.add(id(frame))
        frame = frame.f_back
    count = 0
    for each in reversed(local.stack):
        if each.frame is None or id(each.frame) in calls:
            break
        count += 1
    return count


DIRECT = 512
"""Additional bytes in a slot for each weight that can be read from a file directly into its place."""


class Engine:
    """The run time of one attached model: called by its hooks, it loads and releases weights.

    Args:
        device: the device that computes.
        model: the model's weights and groups.
        transfers: the threads that copy.
        migration: moves weights to the tiers that a plan gives them.
        poison, limit: as for `Ring`.
    """

    def __init__(
        self, device: Device, model: Model, transfers: Transfers, migration: Migration, *, poison: bool, limit: float
    ) -> None:
        self.device, self.model, self.transfers, self.migration = device, model, transfers, migration
        self.poison, self.limit = poison, limit
        self.plan: Plan | None = None
        self.ring = self._ring([])
        self.needs: list[Needs] = []
        self.unit_of: dict[Weight, Unit] = {}
        self.packing = Packing(self._view_for_backward, self._residents)
        self.traces = {False: Order([]), True: Order([])}
        """Expected order of the units in a step; the key is True for steps with backward."""
        self.step: list[str] = []
        self.trace = Trace()
        self.tracing = True
        self.steps = 0
        self.missed = 0
        self.learned: Callable[[], None] | None = None
        """Called at the begin of the step after a traced one."""
        self.stale: Callable[[], None] | None = None
        """Called before the next module runs, once weights have changed their sizes."""
        self.active: dict[Weight, list[Unit]] = {}
        self.watch: Callable[[str, Slot, Unit], None] | None = None
        self.moved: Counter[str] = Counter()
        """Bytes that were moved outside the transfer threads, by link."""
        self._process = os.getpid()
        self._local = Local()
        self._placed: defaultdict[Unit, set[object]] = defaultdict(set)
        self.slot_sizes: list[int] = []
        """Bytes of each slot of the plan."""
        self.lent = False
        """True while the optimizer uses the slots' memory; it calls `make_ring` afterwards."""
        self._unfinished: Plan | None = None
        self._closed = False
        self._units: list[Unit] = []
        self._rooted = False
        self.pieces: RowPieces | None = None
        """Weights that are computed in pieces and are not in the plan."""

    def _ring(self, memories: list[Memory]) -> Ring:
        return Ring(memories, self.device, self.transfers, Order([]), poison=self.poison, limit=self.limit)

    # The plan

    def tiers(self, plan: Plan) -> dict[str, Tier]:
        """The tier of each weight in a plan, by name."""
        found: dict[str, Tier] = dict.fromkeys(self.model.weights, "device")
        streamed = {member.key for group in plan.groups for member in plan.streamed(group.name)}
        by_name: dict[str, Tier] = {
            name: each.tier for each in plan.homes if each.what == "weights" for name in each.members
        }
        for key in streamed:
            tier = by_name[key]
            found.update({each.name: tier for each in self.model.members[key]})
        if self.pieces is not None:
            found.update({weight.name: tier for weight, tier in self.pieces.tiers.items()})
        return found

    def apply(self, plan: Plan) -> None:
        """Move weights to their tiers in a plan, and make its slots.

        Raises:
            TierError: a weight cannot be moved; each weight is complete in one tier then.
        """
        self.ring_clear()
        self._unfinished = plan
        self.lend()
        tiers = self.tiers(plan)
        self._place(tiers)
        units = []
        for group in plan.groups:
            weights = [weight for each in plan.streamed(group.name) for weight in self.model.members[each.key]]
            if weights:
                units.append(Unit(group.name, weights))
        self._set_offsets(units, plan)
        self.plan = plan
        size = max((each.nbytes for each in units), default=0)
        count = min(plan.slots, len(units)) if units and not plan.training else plan.slots
        self.slot_sizes = [max(size, plan.slot_bytes if plan.training else 0)] * count
        self._units = units
        self.make_ring()
        self.unit_of = {weight: unit for unit in units for weight in unit.weights}
        groups: dict[str, list[Unit]] = {}
        whole = {part.name: part.group for part in plan.split}
        for unit in units:
            groups.setdefault(whole.get(unit.name, unit.name), []).append(unit)
        for needs in self.needs:
            mine = groups.get(needs.group, [])
            if len(mine) == 1:
                needs.units = mine
            else:
                wanted = {weight for weight in needs.weights if weight.home is not None}
                needs.units = [unit for unit in units if wanted.intersection(unit.weights)]
        self._expect_definition_order([each.name for each in units])
        self._unfinished = None

    def _place(self, tiers: dict[str, Tier]) -> None:
        """Move all weights. A weight that the host has no room for is moved after others have left the host."""
        order = {"disk": 0, "host": 1, "device": 2}  # moves that free memory come first
        left = sorted(tiers, key=lambda each: order[tiers[each]])
        while left:
            waiting, full = [], None
            for name in left:
                try:
                    self.migration.place(self.model.weights[name], tiers[name])
                except TierCapacityError as error:
                    if tiers[name] != "host":
                        raise
                    waiting.append(name)
                    full = error
            if len(waiting) == len(left) and full is not None:
                raise full
            left = waiting

    def make_ring(self) -> None:
        """Make the slots, all empty."""
        order = self.ring.order
        waited, loads, hits, unexpected = self.ring.waited, self.ring.loads, self.ring.hits, self.ring.unexpected
        self.ring = self._ring(self._memories(self.slot_sizes))
        self.ring.order, self.ring.watch = order, self.watch
        self.ring.waited, self.ring.loads, self.ring.hits, self.ring.unexpected = waited, loads, hits, unexpected
        self.ring.add(self._units)
        self.packing.slots = {each.storage._cdata: each for each in self.ring.slots}

    def ring_clear(self) -> None:
        """Empty the current ring, and the slots of pieces. Raises like `Ring.clear`."""
        self._forget_ended(self._local, caller())
        self.ring.clear()
        if self.pieces is not None:
            self.pieces.clear()

    def lend(self) -> None:
        """Give up the slots' memory until `make_ring`."""
        self.packing.slots = {}
        self.ring.slots.clear()

    def _memories(self, sizes: list[int]) -> list[Memory]:
        """Allocate the slots on the device; one piece of memory for all of them if that is the host's."""
        if not self.device.capabilities.separate_memory:
            return Memory.several(sizes) if sizes else []
        with self.device.as_current():
            return [Memory.on(self.device, size) for size in sizes]

    def _set_offsets(self, units: list[Unit], plan: Plan) -> None:
        """Choose the place of each weight in its unit's slot.

        If the device computes in the host's memory and there is room, a weight begins at the same offset from a disk
        block as in its file, so that it is read there without a copy.
        """
        unified = not self.device.capabilities.separate_memory
        room = plan.budgets.device - plan.resident_bytes
        most = max((len(each.weights) for each in units), default=0)
        spare = room - plan.slots * (plan.slot_bytes + most * DIRECT)
        for unit in units:
            at = 0
            for weight in unit.weights:
                at = aligned(at)
                if unified and spare >= 0 and isinstance(weight.home, DiskHome) and weight.home.direct:
                    at += (weight.home.offset - at) % DIRECT
                unit.offsets.append(at)
                at += weight.nbytes
            unit.nbytes = aligned(at)

    def _expect_definition_order(self, names: list[str]) -> None:
        """Expect the order of definition, and its reverse in backward, until a step was traced."""
        self.traces = {False: Order(names), True: Order([*names, *reversed(names)])}
        self.ring.order = self.traces[False]
        self.step, self.trace = [], Trace()

    # Steps

    def begin_step(self) -> None:
        """Close the step that was recorded since the last call, and begin a new one; called when the model starts."""
        if self.step:
            training = any(backward for _, backward in self.trace.uses)
            known = self.traces[training]
            order = Order(self.step)
            if order.uses != known.uses:
                self.missed += 1
            self.traces[training] = order
            self.steps += 1
            if self.tracing and self.learned is not None:
                self.learned()
        self.step, self.trace = [], Trace()
        self.ring.order = self.traces[torch.is_grad_enabled() and bool(self.traces[True].uses)]
        self.ring.order.restart()

    # Modules

    def enter(self, needs: Needs) -> None:
        """Load a module's weights; called before it runs.

        Raises:
            TierError: its weights cannot be loaded.
        """
        with outside_transforms():
            self._enter(needs)

    def _enter(self, needs: Needs) -> None:
        local = self._local
        frame = caller()
        if local.stack or local.holding or local.fetching:  # something may have been interrupted before
            self._forget_ended(local, frame)
        if all(each.frame is None for each in local.stack):
            self._begin(needs)
        run = Run(needs, [], frame, packs=self._pack())
        try:
            for unit in needs.units:
                if unit not in local.holding:
                    self._hold_unit(unit, local)
                    run.held.append(unit)
        except BaseException:
            self._release_run(run, local)
            raise
        local.stack.append(run)
        if self.tracing and needs.group:
            self.trace.enter(needs.group, torch._C._current_graph_task_id() != -1)

    def leave(self, needs: Needs) -> None:
        """Release a module's weights; called after it has run or failed. Does nothing if it never began."""
        local = self._local
        if not any(each.needs is needs for each in local.stack):
            return
        if self.tracing and needs.group:
            if self.device.capabilities.separate_memory:
                self.device.synchronize()
            self.trace.leave()
        with outside_transforms():
            while True:
                run = local.stack.pop()
                self._release_run(run, local)
                if run.needs is needs:
                    break
            if run.held:
                self.ring.prefetch()

    def visit(self, needs: Needs) -> None:
        """Load a module's weights without running it, until `leave`.

        Raises:
            TierError: they cannot be loaded.
        """
        local = self._local
        self._forget_ended(local, caller())
        if all(each.frame is None for each in local.stack):
            self._check(needs)
        run = Run(needs, [], None, packs=self._pack())
        try:
            for unit in needs.units:
                if unit not in local.holding:
                    self._hold_unit(unit, local, counted=False)
                    run.held.append(unit)
        except BaseException:
            self._release_run(run, local)
            raise
        local.stack.append(run)

    def _release_run(self, run: Run, local: Local) -> None:
        """Undo what `_enter` or `visit` did for a module: changed weights are written back, units are released."""
        try:
            for unit in run.held:
                self._write_back_changes(unit)
        finally:
            for unit in run.held:
                self._release_unit(unit, local)
            if run.packs:
                run.packs = False
                torch._C._autograd._pop_saved_tensors_default_hooks()

    def _write_back_changes(self, unit: Unit) -> None:
        """Write back weights that were changed in place while their module ran."""
        for weight, version in unit.versions.items():
            if weight.home is not None and weight.parameters[0]._version != version:
                self.write_back(weight)

    def write_back(self, weight: Weight) -> None:
        """Write a weight's values on the device back to its home; other units that have it load it again.

        Raises:
            TierError: they cannot be written.
        """
        with torch.inference_mode(False), torch.no_grad():
            self.migration.rewrite(weight, weight.parameters[0].detach().cpu())
        users = self.active.get(weight)
        for unit in self._units:
            if weight in unit.weights:
                unit.versions[weight] = weight.parameters[0]._version
                if not users or unit is not users[-1]:
                    self.ring.drop(unit)

    def _forget_ended(self, local: Local, frame: Any) -> None:
        """Release what modules hold that have stopped without a call of `leave`, as after Ctrl-C; see `ended`."""
        for _ in range(ended(local, frame)):
            self._release_run(local.stack.pop(), local)
        if not local.stack:
            for unit in list(local.holding):
                self._release_unit(unit, local)
            if local.fetching is not None:
                self.ring.release(local.fetching, local.fetcher)
                local.fetching = None

    def _begin(self, needs: Needs) -> None:
        """Begin the outermost call of a thread: refuse what cannot run, and see whether a new step begins with it."""
        self._check(needs)
        backward = torch._C._current_graph_task_id() != -1
        if not backward and (needs.root or (not self._rooted and self._begins_next_step(needs))):
            self._rooted = self._rooted or needs.root
            self.begin_step()

    def _check(self, needs: Needs) -> None:
        """Refuse a forked process, tracing and unfinished moves; called before the first module of a call runs."""
        if os.getpid() != self._process:
            raise forked(self._process)
        if _is_traced():
            raise TierAbsentError(
                "a model whose weights come and go cannot be traced: a trace keeps the weights that it sees.",
                looked_at="torch.jit.trace, make_fx, FakeTensorMode, or an export that uses them, runs "
                f"{needs.name or 'the model'}",
                do="detach the model first: handle.detach()",
            )
        if not self._closed:
            self._resume_interrupted()
        if self.stale is not None:
            stale, self.stale = self.stale, None
            stale()

    def _pack(self) -> bool:
        """Register the hooks that make autograd save weights as references; True if they were not registered yet."""
        if not torch.is_grad_enabled() or not (self.packing.slots or self.packing.otherwise):
            return False
        if torch._C._autograd._saved_tensors_hooks_get_disabled_error_message() is not None:
            raise TierAbsentError(
                "gradients of torch.func cannot be taken through a model whose weights come and go: it allows no hooks "
                "for saved tensors, and without them each weight would have to stay for backward.",
                looked_at="torch.func.grad, vjp, jacrev or hessian, or disable_saved_tensors_hooks",
                do="use torch.autograd.grad, torch.func.jvp or jacfwd; or detach the model first: handle.detach()",
            )
        hooks = self.packing.hooks(torch._C._autograd._top_saved_tensors_default_hooks(True))
        if hooks is None:
            return False
        torch._C._autograd._push_saved_tensors_default_hooks(*hooks)
        return True

    def _residents(self) -> dict[int, Weight]:
        """Weights that stay on the device, by the address of their storage."""
        return {
            each.parameters[0].data.untyped_storage()._cdata: each
            for each in self.model.weights.values()
            if each.home is None
        }

    def _resume_interrupted(self) -> None:
        """Complete what Ctrl-C has interrupted: moves of a new plan, or making the slots."""
        if self._unfinished is not None:
            self.apply(self._unfinished)
        elif self.slot_sizes and not self.ring.slots and not self.lent:
            self.make_ring()

    def _begins_next_step(self, needs: Needs) -> bool:
        """True if a module whose parts are called one by one is at the first part again: that is the next step."""
        return bool(self.step) and bool(needs.units) and needs.units[0].name == self.step[0]

    # Units

    def _hold_unit(self, unit: Unit, local: Local, *, counted: bool = True) -> Slot:
        """Load a unit for this thread, and give its parameters their values, unless another thread has done so."""
        local.holding[unit] = 1
        try:
            slot = self.ring.hold(unit, local.me)
            if counted:
                self.step.append(unit.name)
            with self.ring.lock:
                placed = self._placed[unit]
                if not placed:
                    for weight, view in zip(unit.weights, slot.view(unit), strict=True):
                        users = self.active.setdefault(weight, [])
                        if unit not in users:
                            users.append(unit)
                        for parameter in weight.parameters:
                            present(parameter)
                            parameter.data = view
                    unit.versions = {weight: weight.parameters[0]._version for weight in unit.weights}
                placed.add(local.me)
        except BaseException:
            self._release_unit(unit, local)
            raise
        return slot

    def _release_unit(self, unit: Unit, local: Local) -> None:
        """Release a unit for this thread. Safe to repeat after an interruption."""
        with self.ring.lock:
            self._placed[unit].discard(local.me)
            if not self._placed[unit]:
                for weight in unit.weights:
                    users = self.active.get(weight, [])
                    if unit in users:
                        users.remove(unit)
                    if users and users[-1].slot is not None:  # tied: another loaded group has this weight too
                        other = users[-1]
                        data = users[-1].slot.view(other)[other.weights.index(weight)]
                        for parameter in weight.parameters:
                            present(parameter)
                            parameter.data = data
                    else:
                        weight.withdraw()
            self.ring.release(unit, local.me)
        local.holding.pop(unit, None)

    def _view_for_backward(self, reference: Reference) -> torch.Tensor:
        """Return the view of a weight that backward asks for; its slot is kept as long as the view lives."""
        weight = reference.weight
        unit = self.unit_of.get(weight)
        with torch.inference_mode(False), torch.no_grad():
            if unit is None:  # it stays on the device now
                whole = weight.parameters[0].data
                at = int(whole.storage_offset()) * whole.dtype.itemsize + reference.offset
                made = torch.empty(0, dtype=reference.dtype, device=whole.device)
                return made.set_(
                    whole.untyped_storage(), at // reference.dtype.itemsize, reference.shape, reference.stride
                )
            local = self._local
            local.fetching = unit
            try:
                slot = self.ring.hold(unit, local.fetcher)
                self.step.append(unit.name)
                if self.tracing:
                    self.trace.enter(unit.name, True)
                else:
                    self._backward_seen()
                offset = unit.offsets[unit.weights.index(weight)] + reference.offset
                return slot.at(offset, reference.dtype, reference.shape, reference.stride)
            finally:
                self.ring.release(unit, local.fetcher)
                local.fetching = None

    def _backward_seen(self) -> None:
        if not self.trace.uses:
            self.trace.uses.append(("", True))

    # The end

    def close(self) -> None:
        """End the threads and delete our own files, with the weights in them."""
        try:
            self.ring_clear()
        finally:
            self.unit_of = {}  # a graph that is still alive finds the weights where they are now
            self.transfers.close()
            self.migration.close()
            self.lend()
            if self.pieces is not None:
                self.pieces.close()
            self._closed = True

"""`Handle`, which `attach` returns: plan, statistics, training and `detach` of one attached model.

Programs call it, and so do the modes (`tiers.modes`) and the image pipelines. It also plans again after the first
step, when the times and the memory of a real step are known ("auto" budgets). Its public methods are API, which
docs/tiers.md describes; when it plans again is free. `detach` either ends with all weights in the model or changes
nothing. Tests: tests/tiers/test_tiers_attach.py, tests/tiers/test_tiers_detach.py, tests/tiers/test_tiers_training.py.
"""

from __future__ import annotations

import os
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from toprope import device as devices
from toprope.device import Device
from toprope.errors import PlanError, TierCapacityError, UsageError
from toprope.sizes import gibibytes
from toprope.tiers.engine.hooks import Hooks, uncompiled
from toprope.tiers.engine.model.model_groups import Weight
from toprope.tiers.engine.model.weight_files import Files
from toprope.tiers.engine.offloaded_params import OffloadedWeights
from toprope.tiers.engine.prefetch.timeline import Timeline
from toprope.tiers.engine.runtime import Engine
from toprope.tiers.engine.saved_weights import Packing
from toprope.tiers.engine.stats import Figures, Stats
from toprope.tiers.engine.training_tiers import Activated, Placed, Places
from toprope.tiers.engine.visit import Visit
from toprope.tiers.plan import SMALL
from toprope.tiers.plan.model import Budgets, Group, Member, Plan, Use, aligned
from toprope.tiers.store.absent import Absence, can_move, set_data, withdraw
from toprope.tiers.store.backing import MemoryHome
from toprope.tiers.store.host import HostStore
from toprope.tiers.store.memory import placeholder
from toprope.tiers.training.optimizer import stepping
from toprope.tiers.training.training import Sizes, Training

__all__ = ["Automatic", "Handle", "Origins", "moved_others", "put_others"]


class Automatic:
    """The "auto" budget of a device with its own memory.

    In the first step the weights get half of the free bytes. The device's peak, which is reset before, shows the bytes
    that this step allocates in addition to the weights; later steps leave these free.

    Args:
        device: the device that computes.
        free: free bytes of the device before anything is moved.
        resolve: function from the bytes that computing takes to the budgets.
    """

    def __init__(self, device: Device, free: int, resolve: Callable[[int], Budgets]) -> None:
        self.device, self._resolve = device, resolve
        self.first = resolve(free // 2)
        """The budgets for the first step."""
        self.most = resolve(0)
        """The budgets if computing took no memory: a model that does not fit into these is refused."""
        self._base = 0

    def begin(self) -> None:
        """Start to measure; called when the weights are in place, so that later allocations are for computing."""
        self._base = self.device.memory_allocated()
        self.device.reset_peak_memory()

    def end(self) -> Budgets:
        """Return the budgets for the weights, from the peak of the step that has ended."""
        peak = self.device.max_memory_allocated() or 0
        self.device.empty_cache()
        return self._resolve(max(0, peak - self._base))


class Handle:
    """An attached model, whose weights are loaded for each use. Made by `toprope.tiers.attach`."""

    def __init__(
        self,
        model: nn.Module,
        engine: Engine,
        hooks: Hooks,
        host: HostStore,
        files: Files | None,
        budgets: Budgets,
        again: Callable[[list[Group], list[Use | str], bool, Budgets], Plan],
        groups: list[Group],
        origins: dict[Weight, torch.device],
        others: Origins,
    ) -> None:
        self.model = model
        """The model; the same object as was given."""
        self._engine, self._hooks, self._host, self._files = engine, hooks, host, files
        self._budgets, self._again, self._groups, self._origins = budgets, again, groups, origins
        self._others = others
        self.timeline = Timeline()
        """Recorded contents of the slots over time."""
        engine.watch = engine.ring.watch = self.timeline.note
        engine.learned = self._learned
        self._weights = OffloadedWeights(engine)
        self._training: Training | None = None
        self._places: Places | None = None
        self.states: Placed = "auto"
        """Place of gradients and optimizer states."""
        self.activations: Activated = "device"
        """Place of the tensors that forward saves for backward."""
        self.smallest = SMALL
        """Size in bytes from which gradients and states leave the device."""
        self._automatic: Automatic | None = None
        self._figures = Figures(engine, host)
        self._figures.planned()
        self._closed = False
        self._times: list[float] = []
        self._began = 0.0
        self._clock()
        hooks.add(self._hook_optimizers())

    @property
    def device(self) -> Device:
        """The device that computes."""
        return self._engine.device

    @property
    def plan(self) -> Plan:
        """The plan: place of every group, and the loads of a step."""
        assert self._engine.plan is not None
        return self._engine.plan

    @property
    def packing(self) -> Packing:
        """Hooks that keep weights saved by autograd as references."""
        return self._engine.packing

    def weights(self, module: nn.Module) -> Visit:
        """Bring weights of a module to the device, to read or to change them outside of its run.

        Args:
            module: the model, or a module in it, whose weights fit into the slots together.

        Returns:
            A context manager. When it ends, changed weights are written back to their place.

        Raises:
            UsageError: the module is not of this model.
            TierCapacityError: its weights do not fit into the slots, when the context begins.
        """
        return Visit(self._engine, self.model, module)

    def _clock(self) -> None:
        """Measure the time of each run of the model."""

        def before(_module: nn.Module, _args: Any) -> None:
            now = time.perf_counter()
            if self._began and torch.is_grad_enabled():
                self._times.append(now - self._began)
            self._began = now

        def after(_module: nn.Module, _args: Any, _output: Any) -> None:
            if not torch.is_grad_enabled():
                self._times.append(time.perf_counter() - self._began)
                self._began = 0.0
            del self._times[:-64]

        self._hooks.add(self.model.register_forward_pre_hook(uncompiled(before), prepend=True).remove)
        self._hooks.add(self.model.register_forward_hook(uncompiled(after)).remove)

    # Planning again

    def _learned(self) -> None:
        """Plan again with the order and the times of the step that was traced."""
        engine = self._engine
        trace, engine.tracing = engine.trace, False
        whole = {part.name: part.group for part in self.plan.split}
        seconds: Counter[str] = Counter()
        count: Counter[str] = Counter()
        order: list[Use | str] = []
        for (name, backward), took in zip(trace.uses, trace.seconds, strict=False):
            group = whole.get(name, name)
            use = Use(group, backward)
            if not order or order[-1] != use:
                order.append(use)
            if not backward:
                seconds[group] += took  # type: ignore[assignment]
                count[group] += 1
        known = {each.name for each in self._groups}
        order = [each for each in order if isinstance(each, Use) and each.group in known]
        if not order:
            return
        self._groups = [
            replace(each, compute_seconds=seconds[each.name] / count[each.name]) if count[each.name] else each
            for each in self._groups
        ]

        if engine.model.coded:  # some may have other values by now
            self._groups = self._sized()
        old, budgets = self.plan, self._budgets
        automatic, self._automatic = self._automatic, None
        try:
            if automatic is not None:
                self._budgets = automatic.end()
            self._replan(order, old.training)
        except Exception as error:  # for instance, tensors of the step on the host take the new plan's room
            if not isinstance(error, PlanError | TierCapacityError) and not self.device.is_out_of_memory(error):
                raise
            self._budgets = budgets
            self._apply(old)

    def watch_memory(self, automatic: Automatic) -> None:
        """Measure in the first step how much memory computing takes, and give the weights the rest."""
        self._automatic = automatic
        automatic.begin()

    def _replan(self, order: list[Use | str], training: bool, *, force: bool = False) -> None:
        """Plan again, and move the weights if the new plan is better than the one in use, or with `force`."""
        engine, old = self._engine, self.plan
        new = self._again(self._groups, order, training, self._budgets)
        if not force and _needs_no_move(old, new):
            engine.plan = replace(new, homes=old.homes, resident=old.resident, host=old.host, disk=old.disk)
            return
        self._apply(new)

    def _apply(self, plan: Plan) -> None:
        engine = self._engine
        traces = engine.traces
        engine.apply(plan)
        self._figures.planned()
        names = set(engine.ring.units)
        if all(use in names for each in traces.values() for use in each.uses):
            engine.traces = traces
            engine.ring.order = traces[False]

    def _on_resized(self) -> None:
        """Plan again before the next module runs, as a conversion has changed the weights' sizes."""

        def again() -> None:
            self._groups = self._sized()
            self._replan(list(self.plan.traced), self.plan.training, force=True)

        self._engine.stale = again

    def _sized(self) -> list[Group]:
        """The groups with the sizes that their weights have now."""
        model = self._engine.model

        def sized(member: Member) -> Member:
            weights = model.members[member.key]
            if not weights:
                return replace(member, bytes=model.fixed_bytes(self.model))
            size = sum(aligned(each.nbytes) for each in weights)
            return replace(member, bytes=size, coded=model.coded_bytes(member.key))

        return [replace(group, members=tuple(sized(each) for each in group.members)) for group in self._groups]

    # Figures

    def stats(self) -> Stats:
        """The statistics so far."""
        return self._figures.stats(self._times, self._training, self._places, self._budgets)

    def reset_stats(self) -> None:
        """Start to count from zero."""
        self._figures.reset()
        self._times.clear()

    # Training

    @property
    def training(self) -> Training:
        """Gradients, activations and optimizer states; made when it is first asked for."""
        if self._training is None:
            self._training = self._begin_training()
        return self._training

    def _begin_training(self) -> Training:
        engine = self._engine
        places = self._places = Places(engine, self._host, self.states, self.activations)
        self._weights.staged = places.staged
        room = self._weights.room()
        if room is None:
            room = max(2**20, self._budgets.device - self._budgets.reserve - self.plan.resident_bytes)
        sizes = Sizes.of(room, self.smallest)
        training = Training(self.model, self._weights, places.place, places.all, places.activations(), sizes)
        if training.activations is not None:
            training.activations.skip = lambda tensor: tensor.untyped_storage()._cdata in self._resident_storages()
            engine.packing.otherwise = (training.activations.pack, training.activations.unpack)
        return training

    def _resident_storages(self) -> set[int]:
        return {
            each.parameters[0].data.untyped_storage()._cdata
            for each in self._engine.model.weights.values()
            if each.home is None
        }

    def optimizer(self, optimizer: torch.optim.Optimizer, *, elementwise: bool | None = None) -> torch.optim.Optimizer:
        """Take an optimizer over: its step goes tile by tile. See `Training.optimizer`.

        One that is not given here is taken over in its first step.
        """
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise UsageError(
                f"this {type(optimizer).__name__} is no torch.optim.Optimizer.",
                do="write its update yourself: with handle.weights(module): ..., module by module",
            )
        return self.training.optimizer(optimizer, elementwise=elementwise)

    def _hook_optimizers(self) -> Callable[[], None]:
        """Register `_stepping` for all optimizers of torch, without keeping this object or the model alive.

        Returns:
            A function that removes the hook; it is called as well when this object is freed.
        """
        mine = weakref.ref(self)

        def before(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            handle = mine()
            return None if handle is None else handle._stepping(optimizer, args, kwargs)

        remove: Callable[[], None] = register_optimizer_step_pre_hook(before).remove
        weakref.finalize(self, remove).atexit = False
        return remove

    def _stepping(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Take over an optimizer that updates offloaded weights; called before each step of any optimizer."""
        mine = {id(each) for weight in self._engine.unit_of for each in weight.parameters}

        def take(each: torch.optim.Optimizer) -> bool:
            self.optimizer(each)
            return True

        if not any(id(each) in mine for group in optimizer.param_groups for each in group["params"]):
            return None
        return stepping(optimizer, args, kwargs, take)

    def clip_grad_norm_(
        self,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        parameters: Iterable[torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Clip gradients. See `Training.clip_grad_norm_`."""
        return self.training.clip_grad_norm_(max_norm, norm_type, error_if_nonfinite, parameters)

    def save(self, path: str | os.PathLike[str], extra: Any = None) -> None:
        """Write a checkpoint. See `Training.save`."""
        self.training.save(path, extra)

    def restore(self, path: str | os.PathLike[str]) -> Any:
        """Go on from a checkpoint. See `Training.restore`."""
        return self.training.restore(path)

    # Detach

    def detach(self, device: str | torch.device | None = None) -> nn.Module:
        """Move all weights back into the model, and remove the hooks.

        Args:
            device: device for the weights, "meta" to give the values up; None for the one they came from. Weights of a
                `skeleton` go to the host's memory then.

        Returns:
            The model.

        Raises:
            TierCapacityError: the weights do not fit there; nothing has changed.
            TierError: some cannot be read; nothing has changed.
            UsageError: they cannot move there, as a graph that is alive refers to them; nothing has changed.
        """
        if not self._closed:
            self._detach(None if device is None else _torch_device(device))
        return self.model

    def _detach(self, asked: torch.device | None, *, drop: bool = False) -> None:
        """Move all weights back, or leave those from files without values.

        Args:
            asked: device for the weights; None for the one they came from, the host if that was meta.
            drop: leave weights that came from meta without values, if the files have the values of all of them.
        """
        engine = self._engine
        engine.ring_clear()
        host = torch.device("cpu")
        dropped: set[Weight] = set()
        targets = {}
        empty = {weight for weight, origin in self._origins.items() if origin.type == "meta"}
        drop = drop and self._files is not None and all(self._unchanged(each) for each in empty)
        for weight, origin in self._origins.items():
            if drop and weight in empty:
                dropped.add(weight)
            else:
                targets[weight] = asked or (host if origin.type == "meta" else origin)
        for weight, where in targets.items():
            if not all(can_move(each, where) for each in weight.parameters):
                raise UsageError(
                    f"the weights cannot move from {self.device} to {where}, and nothing was changed: "
                    "an output with its graph is alive.",
                    looked_at=f"{weight.name} is referred to by a graph, or by a weak reference",
                    do="delete outputs and losses that record gradients (or detach them) and call it again; or "
                    f'leave the weights on the device that computes: handle.detach("{self.device.torch_device}")',
                )
        places = set(targets.values())
        ours = {id(each) for weight in self._origins for each in weight.parameters}
        moves = moved_others(self.model, ours, self._others, asked, places.pop() if len(places) == 1 else None)
        values = self._values(targets)
        for weight, data in values.items():
            home, weight.home = weight.home, None
            for each in weight.parameters:
                set_data(each, data)
            if home is not None:
                home.release()
        for weight in dropped:
            self._leave_without_values(weight)
        put_others(moves)
        if self._training is not None:
            self._training.close()
        self.close()

    def _values(self, targets: dict[Weight, torch.device]) -> dict[Weight, torch.Tensor]:
        """Values of the weights on their target devices; values that are there already are not copied."""
        found = {}
        copied = []
        for weight, where in targets.items():
            home = weight.home
            if where.type == "meta":
                found[weight] = weight.like
            elif home is None and weight.parameters[0].device == where:
                found[weight] = weight.parameters[0].data
            elif isinstance(home, MemoryHome) and isinstance(home.keep, torch.Tensor) and where.type == "cpu":
                found[weight] = home.keep
            else:
                copied.append(weight)
        size = sum(each.nbytes for each in copied if targets[each].type == "cpu")
        free = psutil.virtual_memory().available
        if size > free * 9 // 10:
            raise _no_room("the host", size, f"{gibibytes(free)} available")
        try:
            for weight in copied:
                data = self._engine.migration.values(weight)
                found[weight] = data.to(targets[weight])
        except Exception as error:
            if not self.device.is_out_of_memory(error):
                raise
            where = targets[weight]
            some = sum(each.nbytes for each in copied if targets[each] == where)
            raise _no_room(str(where), some, str(error).splitlines()[0]) from error
        return found

    def _unchanged(self, weight: Weight) -> bool:
        return not weight.changed and (weight.home is not None or weight.parameters[0]._version == weight.version)

    def _leave_without_values(self, weight: Weight) -> None:
        """Leave a weight without values: on meta or, if a graph refers to it, on its device without memory."""
        home, weight.home = weight.home, None
        meta = torch.device("meta")
        empty = placeholder(weight.like, self.device)
        weight.absence = Absence.closed(weight.name, None if self._files is None else str(self._files.folder))
        for each in weight.parameters:
            data = weight.like if can_move(each, meta) else empty
            set_data(each, data)
            withdraw(each, data, weight.absence)
        if home is not None:
            home.release()

    def close(self) -> None:
        """Remove the hooks without moving weights back: weights that were not on the device have no values then.

        Using those is an error; a model that is read from files can be attached again.
        """
        if self._closed:
            return
        self._closed = True
        self._hooks.remove()
        try:
            self._engine.ring_clear()
        finally:
            for weight in self._engine.model.weights.values():
                if weight.home is not None:
                    self._leave_without_values(weight)
            if self._places is not None:
                self._places.close()
            self._host.close()
            self._engine.close()
            if self._files is not None:
                self._files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._closed:
            return
        try:
            self._detach(None, drop=True)
        except Exception:
            if kind is None:
                raise
            self.close()  # the first error counts

    def __repr__(self) -> str:
        return f"<toprope tiers of {type(self.model).__name__} on {self.device}>"

    def save_timeline(self, path: str | os.PathLike[str], seconds: float | None = None) -> None:
        """Draw the contents of the slots over time, as SVG.

        Args:
            path: the file to write.
            seconds: draw only this many seconds at the end; None for everything recorded.
        """
        stays = f"{len(self.plan.resident)} of {len(self.plan.groups)} groups always stay on the device"
        Path(path).write_text(self.timeline.svg(seconds, stays), encoding="utf-8")


Origins = dict[tuple[nn.Module, str], torch.device]
"""Devices of buffers and parameters before the model was attached, by their modules and names."""


def moved_others(
    model: nn.Module, ours: set[int], origins: Origins, asked: torch.device | None, new: torch.device | None
) -> list[tuple[nn.Module, str, torch.Tensor]]:
    """Copies of buffers and of parameters that were not offloaded, on the devices that they go back to.

    Args:
        model: the model.
        ours: ids of the parameters that were offloaded.
        origins: their devices before the model was attached.
        asked: device for all of them; None, or meta, for their origins.
        new: device for those that were added later; None to leave them.
    """
    host = torch.device("cpu")
    found = []
    for owner in model.modules():
        others = [(name, each) for name, each in owner._parameters.items() if id(each) not in ours]
        for name, each in (*owner._buffers.items(), *others):
            where = origins.get((owner, name), new) if asked is None or asked.type == "meta" else asked
            where = host if where is not None and where.type == "meta" else where
            if each is not None and where is not None and not each.is_meta and each.device != where:
                found.append((owner, name, each.detach().to(where)))
    return found


def put_others(moves: list[tuple[nn.Module, str, torch.Tensor]]) -> None:
    """Put the copies that `moved_others` made into their modules."""
    for owner, name, moved in moves:
        parameter = owner._parameters.get(name)
        if parameter is None:
            owner._buffers[name] = moved
        else:
            set_data(parameter, moved)


def _torch_device(device: str | torch.device) -> torch.device:
    meta = torch.device("meta")
    return meta if device in ("meta", meta) else devices.get(device).torch_device


def _no_room(where: str, size: int, fact: str) -> TierCapacityError:
    return TierCapacityError(
        f"{where} has no room for the weights that come back, and nothing was changed.",
        looked_at=f"{gibibytes(size)} of weights to copy, {fact}",
        do="name a device that has room: handle.detach(device); save them: handle.model.state_dict(); "
        'or give the values up: handle.detach("meta")',
    )


def _needs_no_move(old: Plan, new: Plan) -> bool:
    """True if a new plan is no reason to move weights: it has as many slots, and as many bytes in each tier."""
    return (
        (old.slots, old.slot_bytes, old.training) == (new.slots, new.slot_bytes, new.training)
        and old.resident_bytes == new.resident_bytes
        and all(old.bytes_in(tier) == new.bytes_in(tier) for tier in ("host", "disk"))
        and not (old.split or new.split)
    ) or not (old.slots or new.slots)

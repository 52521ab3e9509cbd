"""`toprope.tiers.attach`: let a model run on a device whose memory it does not fit into.

Programs call it, and so do the modes (`tiers.modes`) and the image pipelines. It builds everything that an attached
model has: groups of weights, the plan, stores, transfer threads, hooks. What happens after that is in `engine.handle`
(the object that it returns) and `engine.runtime` (called by the hooks). An error leaves the model as it was. The
arguments are public API: docs/tiers.md describes them. Tests: tests/tiers/test_tiers_attach.py,
tests/tiers/test_tiers_ring.py, tests/tiers/test_tiers_files.py; wrong arguments in tests/tiers/test_tiers_detach.py.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import torch
from torch import nn

from toprope import device as devices
from toprope.device import Device
from toprope.errors import PlanError, TierCapacityError, UsageError, WeightsError
from toprope.progress import Progress
from toprope.sizes import gibibytes, parse_size
from toprope.terminal import Display
from toprope.tiers.engine.handle import Automatic, Handle, Origins, moved_others, put_others
from toprope.tiers.engine.hooks import Hooks
from toprope.tiers.engine.migrate import Migration
from toprope.tiers.engine.model.library_loaders import layouts, load_values, stored_in_bins
from toprope.tiers.engine.model.model_groups import FIXED, Model, Weight, read_model
from toprope.tiers.engine.model.weight_files import Files, fill_buffers
from toprope.tiers.engine.prefetch.row_pieces import SLOTS, RowPieces, divisible, fused_experts, same_bits, slot_bytes
from toprope.tiers.engine.runtime import DIRECT, Engine
from toprope.tiers.engine.state import State
from toprope.tiers.engine.training_tiers import Activated, Placed, check_places
from toprope.tiers.plan import SMALL, plan
from toprope.tiers.plan.budgets import Free, folder_and_limit, resolve
from toprope.tiers.plan.model import Budgets, Group, Links, Member, Plan, Tier, Use, training_order
from toprope.tiers.store.absent import can_move, is_absent, set_data
from toprope.tiers.store.backing import Home
from toprope.tiers.store.coded import CodedHome, JoinedHome, decode_on
from toprope.tiers.store.host import HostStore
from toprope.tiers.store.memory import free_memory, placeholder, without_values
from toprope.tiers.store.transfer import LIMIT, Link, Transfers

if TYPE_CHECKING:
    from toprope.device.select import DeviceLike

__all__ = ["ATTACHED", "attach"]

_WORTH_MEASURING = 256 * 2**20
"""Models of fewer bytes are planned with estimates of the links: measuring takes a second."""

_QUIET_SECONDS = 2.0
"""Time before progress is shown."""


def attach(
    model: nn.Module,
    device: int | str = "auto",
    host: int | str = "auto",
    disk: str | os.PathLike[str] | None = None,
    *,
    on: DeviceLike | None = None,
    training: bool = False,
    states: Placed = "auto",
    activations: Activated = "device",
    slots: int | None = None,
    small: int | str = SMALL,
    resident: Iterable[str | type[nn.Module]] = (),
    links: Links | None = None,
    progress: Callable[[int, int], Any] | None = None,
    limit: float = LIMIT,
    threads: int = 2,
    link: float | None = None,
    poison: bool = False,
    disturb: Callable[[], None] | None = None,
) -> Handle:
    """Let a model be larger than the memory of its device: weights that do not fit are loaded when they are used.

    The model is changed in place: its parameters stay the same objects, and have their values while their module
    runs. Results are bit for bit those of the whole model on the device.

    Args:
        model: in memory, or on meta (see `skeleton`) with its files in `disk`; of a module that `torch.compile` made,
            the model in it is attached.
        device: bytes of the device for weights, such as "24GB"; "auto" for the free bytes without those that computing
            takes, which the first step shows (the device's peak is reset for that); the first step gets half of them.
        host: bytes of the host's memory; "auto" for a part of the available memory.
        disk: a folder with the model's safetensors files (or one such file), read in place; or a folder for a file
            with the weights that have no room elsewhere. "folder:64GB" limits that file. None for no disk.
        on: the device that computes; None for the one that the model is on, and for a model on the host or on meta the
            one that `toprope.device.get` gives.
        training: plan for training: gradients and the optimizer's states are counted.
        states: place of gradients and optimizer states: "auto" for the plan's choice, "host" (those that have no room
            there go to the disk) or "disk".
        activations: place of the tensors that forward saves for backward: they stay on the "device", or are moved to
            the "host" (those that have no room there to the disk) or the "disk", and fetched ahead of backward.
        slots: number of slots in the ring; None for the plan's choice.
        small: tensors of fewer bytes always stay on the device.
        resident: modules whose weights always stay on the device, with those in them, by their names or classes:
            `["lm_head", nn.Embedding]`, such as those whose weights are used without a call of the module.
        links: the speeds between tiers; None to measure them.
        progress: called with bytes done and in all while attaching, if that takes more than two seconds; None for a
            line where stderr is a terminal.
        limit: seconds that a transfer may take.
        threads: number of threads that move bytes.
        link: bytes a second of an emulated link between host and device, for measurements.
        poison: fill slots with 0xFF before they are loaded, for tests.
        disturb: called before and after each request, for tests.

    Returns:
        A handle: `plan`, `stats()`, `optimizer(...)`, `detach()`. It is a context manager that detaches.

    Raises:
        PlanError: the model cannot fit into these budgets; nothing has changed then.
        WeightsError: the files are not this model's.
        TierError: something could not be moved; the model is as it was then.
        UsageError: the model is attached already.
    """
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"attach takes a torch.nn.Module, and this is {_type_text(model)}.",
            do="give it the model: attach(model, ...); of a pipeline each of its models, such as attach(pipeline.unet)",
        )
    for name, module in model.named_modules():
        if ATTACHED in vars(module):
            raise UsageError(
                f"{f'{name} of this model' if name else 'this model'} is attached already.",
                do="detach it first: handle.detach()",
            )
    if "_orig_mod" in model._modules:  # torch.compile(model): the model in it is attached, and compiled again
        model = model.get_submodule("_orig_mod")
        torch.compiler.reset()
    _check_options(slots, threads, limit, disk)
    _forget_dropped(model)
    computes = _device(model, on)
    folder, most = _folder(disk)
    check_places(states, activations, disk=folder is not None)
    taken = read_model(model, _bytes(small), _resident(model, resident))
    files, values = _read(model, taken, folder)
    try:
        handle = _Attaching(model, taken, computes, files, folder, values).run(
            device, host, most, training=training, states=states, slots=slots, small=_bytes(small), links=links,
            progress=progress, limit=limit, threads=threads, link=link, poison=poison, disturb=disturb,
        )  # fmt: skip
        handle.states, handle.activations, handle.smallest = states, activations, _bytes(small)
        return handle
    except BaseException:
        if files is not None:
            files.close()
        raise


ATTACHED = "__toprope_tiers__"
"""The attribute that an attached model has."""


def _shapes(weights: Sequence[Weight]) -> list[Weight]:
    """One weight of each shape and dtype."""
    return list({(tuple(each.like.shape), each.like.dtype): each for each in weights}.values())


def _bytes(size: int | str) -> int:
    return size if isinstance(size, int) else parse_size(size)


def _resident(model: nn.Module, chosen: Iterable[str | type[nn.Module]]) -> set[str]:
    """The names of modules that are chosen by name or by class, and of those in them."""
    found: set[str] = set()
    if isinstance(chosen, (str, type)):
        chosen = [chosen]
    modules = dict(model.named_modules())
    for each in chosen:
        tops = [
            name for name, one in modules.items() if name == each or (isinstance(each, type) and isinstance(one, each))
        ]
        if not tops:
            raise UsageError(
                f"resident names {each!r}, and the model has no such module.",
                looked_at=f"modules such as {', '.join(list(modules)[1:6])}",
                do="give names as in model.named_modules(), or classes",
            )
        for top in tops:
            found |= {name for name in modules if not top or name == top or name.startswith(f"{top}.")}
    return found


def _type_text(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"of type {type(value).__name__}"


def _check_options(slots: object, threads: object, limit: object, disk: object) -> None:
    """Refuse options of another type, and numbers with which a transfer could never end."""
    problem = ""
    if slots is not None and type(slots) is not int:
        problem = f"slots is a whole number or None, and not {slots!r}."
    elif type(threads) is not int or threads < 1:
        problem = f"threads is a whole number of 1 and more, and not {threads!r}."
    elif not isinstance(limit, (int, float)) or not limit > 0:
        problem = f"limit is a number of seconds above 0, and not {limit!r}."
    elif disk is not None and not isinstance(disk, (str, os.PathLike)):
        problem = f"disk is the path of a folder or None, and not {disk!r}."
    if problem:
        raise UsageError(problem, do="see help(toprope.tiers.attach)")


def _forget_dropped(model: nn.Module) -> None:
    """Put the parameters that an earlier detach left without values on meta, like those of a skeleton."""
    dropped = [each for each in model.parameters() if is_absent(each)]
    if not all(can_move(each, torch.device("meta")) for each in dropped):
        raise UsageError(
            "the model was detached without its values, and an output with its graph is alive that refers to them.",
            do="delete outputs and losses that record gradients (or detach them), and attach again",
        )
    for each in dropped:
        set_data(each, without_values(each))


def _device(model: nn.Module, on: DeviceLike | None) -> Device:
    if on is not None:
        return devices.get(on)
    there = {each.device for each in model.parameters() if each.device.type not in ("meta", "cpu")}
    return devices.get(there.pop()) if len(there) == 1 else devices.get()


def _folder(disk: str | os.PathLike[str] | None) -> tuple[Path | None, int | str]:
    if disk is None:
        return None, 0
    text = os.fspath(disk)
    path, limit = (text, None) if os.path.exists(text) else folder_and_limit(text)
    return _existing_path(Path(path)), "auto" if limit is None else limit


def _existing_path(path: Path) -> Path:
    if not path.exists():
        raise UsageError(f"{path} is not there.", do="name a folder that is: attach(..., disk=folder)")
    return path


def _has_weights(folder: Path) -> bool:
    return folder.suffix == ".safetensors" or any(folder.glob("*.safetensors"))


def _read(model: nn.Module, taken: Model, folder: Path | None) -> tuple[Files | None, dict[str, torch.Tensor]]:
    """Open the files that weights are read from in place; or read the values, if only the model's library can."""
    empty = any(each.is_meta for each in model.parameters())
    if folder is None:
        return None, {}
    stored = None
    if not _has_weights(folder):
        stored = stored_in_bins(folder) if empty else None
        if stored is None:
            return None, (load_values(model, folder) if empty and folder.is_dir() else None) or {}
    files = Files(folder, taken, model, stored)
    problem: WeightsError | None = None
    try:
        files.check(whole=empty)
    except WeightsError as error:
        problem = error
    if problem is None and stored is None:
        return files, {}
    convertible = empty and folder.is_dir() and problem is not None and files.may_be_converted()
    if convertible and stored is None and files.take_layouts(layouts(model, files.stored)):
        return files, {}
    files.close()
    if problem is not None and not convertible:
        if empty and files.refused:
            files.check(whole=True)  # names the codes too
        raise problem
    values = load_values(model, folder)
    if values is None and problem is not None:
        raise problem
    return None, values or {}


class _Attaching:
    """One call of `attach`, step by step: groups, budgets, plan, stores, hooks; undone as a whole after an error."""

    def __init__(
        self,
        module: nn.Module,
        model: Model,
        device: Device,
        files: Files | None,
        folder: Path | None,
        values: dict[str, torch.Tensor],
    ) -> None:
        self.module, self.model, self.device, self.files, self.folder = module, model, device, files, folder
        self.values = values
        self.origins = {each: each.parameters[0].device for each in model.weights.values()}
        self.others: Origins = {
            (owner, name): each.device
            for owner in module.modules()
            for name, each in (*owner._buffers.items(), *owner._parameters.items())
            if each is not None
        }

    def run(
        self,
        device: int | str,
        host: int | str,
        disk: int | str,
        *,
        training: bool,
        states: Placed,
        slots: int | None,
        small: int,
        links: Links | None,
        progress: Callable[[int, int], Any] | None,
        limit: float,
        threads: int,
        link: float | None,
        poison: bool,
        disturb: Callable[[], None] | None,
    ) -> Handle:
        self._check_meta()
        self._find_codes(training, threads)
        budgets, automatic = self._budgets(device, host, disk)
        speeds = links or self._links()
        groups = self._groups(speeds, training)
        spare = self._spare(budgets)
        in_pieces: dict[Weight, Tier] = {}
        size = 0

        asked: Tier | None = None if states == "auto" else states

        def again(some: list[Group], order: list[Use | str], train: bool, have: Budgets) -> Plan:
            host = max(0, have.host - sum(each.nbytes for each, tier in in_pieces.items() if tier == "host"))
            disk = None if have.disk is None else max(0, have.disk - self._new_on_disk(in_pieces))
            given = Budgets(have.device - spare, host, disk, have.reserve)
            stored = self.files is not None and all(name in self.files.homes for name in self.model.weights)
            return plan(
                some, order, given, speeds, training=train, stored=stored, slots=slots, small=small, states=asked
            )

        names: list[Use | str] = [each.name for each in self.model.groups]
        order: list[Use | str] = list(training_order(names)) if training else names
        try:
            made = again(groups, order, training, budgets)
        except PlanError as error:
            if automatic is not None:
                budgets, automatic = automatic.most, None
                made = again(groups, order, training, budgets)
            else:
                for chosen in () if training else self._pieces(budgets):
                    in_pieces, size = chosen
                    groups = self._groups(speeds, training)
                    order = [each.name for each in self.model.groups] or [FIXED]
                    try:
                        made = again(groups, order, training, budgets)
                        break
                    except PlanError:
                        continue
                else:
                    if not training and fused_experts(self.model):
                        error.do += (
                            '; or let experts come one by one: model.set_experts_implementation("eager") before attach'
                        )
                    raise error from None
        moving = self.device if self.device.capabilities.separate_memory else None
        transfers = Transfers(moving, threads=threads, link=None if link is None else Link(link), disturb=disturb)
        total = sum(each.nbytes for each in self.model.weights.values())
        display = Display("weights", quiet=not sys.stderr.isatty())
        show = display.step if progress is None else (lambda step: progress(step.number, step.of))
        moved = Progress(show, total=total, unit="B", after=_QUIET_SECONDS, every=0.2)
        store = HostStore(budgets.host, transfers, moving)
        homes: Mapping[str, Home] = {} if self.files is None else self.files.homes
        where = self.folder if self.folder is None or self.folder.is_dir() else self.folder.parent
        migration = Migration(self.device, transfers, store, where, budgets.disk or 0, homes, moved.advance)
        migration.limit, migration.coded = limit, self.model.coded
        engine = Engine(self.device, self.model, transfers, migration, poison=poison, limit=limit)
        if in_pieces:
            engine.pieces = RowPieces(self.device, transfers, in_pieces, size, poison=poison, limit=limit)
        hooks = Hooks(self.module, self.model, engine)
        try:
            empty = any(each.type == "meta" for each in self.origins.values())
            stored = self.values.get if self.files is None else self.files.value
            fill_buffers(self.module, stored, all_of_them=empty)
            self._from_files()
            hooks.install()
            self._move_rest()
            engine.apply(made)
            handle = Handle(
                self.module, engine, hooks, store, self.files, budgets, again, groups, self.origins, self.others
            )
            migration.decoded = handle._on_resized
            State(self.model, migration, engine.ring_clear, handle._on_resized).install(self.module, hooks)
        except BaseException as error:
            self._undo(hooks, engine, migration)
            if self.device.is_out_of_memory(error):
                raise TierCapacityError(
                    f"{self.device} has no room for its part of the model, which is {gibibytes(budgets.device)}.",
                    looked_at=str(error).splitlines()[0],
                    do='give it less: attach(model, device="...")',
                ) from error
            raise
        finally:
            migration.on_moved = None
            display.clear()
        for weight in self.model.weights.values():
            weight.version = weight.parameters[0]._version
        if automatic is not None:
            handle.watch_memory(automatic)
        vars(self.module)[ATTACHED] = True
        hooks.add(lambda: vars(self.module).pop(ATTACHED, None))
        hooks.refuse_copies()
        hooks.refuse_replicas()
        return handle

    def _pieces(self, budgets: Budgets) -> Iterator[tuple[dict[Weight, Tier], int]]:
        """Try sets of weights that are computed in pieces so that the others have room.

        First the largest weights of experts, then more of them, as their pieces are small; then weights of any kind.
        `self.model` has the groups without them meanwhile.

        Yields:
            The tier of each such weight, and the bytes of a slot for pieces.
        """
        every = divisible(self.model)
        experts = [each for each in every if each.like.dim() == 3]
        room = budgets.device - budgets.reserve
        sets = [some[:count] for some in (experts, every) for count in range(1, len(some) + 1)]
        rest = [some[count:] for some in (experts, every) for count in range(1, len(some) + 1)]
        for chosen, others in zip(sets, rest, strict=True):
            if others and others[0].nbytes == chosen[-1].nbytes:
                continue  # weights of one size together
            for part in (4, 8, 32):
                size = slot_bytes(chosen, room // part)
                if SLOTS * size >= room or not all(same_bits(each, size, self.device) for each in _shapes(chosen)):
                    continue
                tiers: dict[Weight, Tier] = {}
                left = budgets.host
                for each in chosen:
                    tiers[each] = "host" if each.nbytes <= left else "disk"
                    left -= each.nbytes if tiers[each] == "host" else 0
                if self._new_on_disk(tiers) > (budgets.disk or 0) or (self.folder is None and "disk" in tiers.values()):
                    continue
                self.model.divide(chosen, SLOTS * size)
                yield tiers, size

    def _new_on_disk(self, tiers: Mapping[Weight, Tier]) -> int:
        """Bytes of the weights that will be written to the disk because no file there has them."""
        stored: Mapping[str, Home] = {} if self.files is None else self.files.homes
        return sum(each.nbytes for each, tier in tiers.items() if tier == "disk" and each.name not in stored)

    def _check_meta(self) -> None:
        missing = [
            name
            for name, weight in self.model.weights.items()
            if self.origins[weight].type == "meta"
            and name not in self.values
            and (self.files is None or name not in self.files.homes)
        ]
        meta = {
            f"{prefix}.{short}" if prefix else short
            for prefix, owner in self.module.named_modules()
            for short, each in owner._parameters.items()
            if each is not None and each.device.type == "meta" and each.numel()
        }
        missing += [name for name in self.model.left if name in meta]
        if missing and self.folder is not None and self.folder.is_dir():
            others = sorted(
                each.name for each in self.folder.iterdir() if each.suffix in (".bin", ".pt", ".pth", ".gguf")
            )
            if others and self.files is None:
                raise WeightsError(
                    f"{self.folder} has no safetensors files, and this {type(self.module).__name__} has no values.",
                    looked_at=", ".join(others[:5]),
                    do="load such a file into a model in memory and attach that; or save it as safetensors once",
                )
        if missing:
            raise WeightsError(
                f"{len(missing)} weights of the model have no values, and are not in the files.",
                looked_at=f"such as {missing[0]}; {self.folder or 'no folder was given'}",
                do="name the model's folder: attach(model, disk=folder); tie its weights (model.tie_weights()) before",
            )

    def _budgets(self, device: int | str, host: int | str, disk: int | str) -> tuple[Budgets, Automatic | None]:
        unified = not self.device.capabilities.separate_memory
        free = Free(
            device=None if unified else free_memory(self.device),
            host=psutil.virtual_memory().available,
            disk=None if self.folder is None else shutil.disk_usage(self.folder).free,
            unified=unified,
        )

        def found(activations: int) -> Budgets:
            made = resolve(free, device, host, disk, activations=activations)
            return made if self.folder is not None else Budgets(made.device, made.host, None, made.reserve)

        if device != "auto" or free.device is None:
            return found(0), None
        automatic = Automatic(self.device, free.device, found)
        return automatic.first, automatic

    def _links(self) -> Links:
        from toprope.tiers.plan.links import estimate, measure

        total = sum(each.nbytes for each in self.model.weights.values())
        if total < _WORTH_MEASURING:
            unified = not self.device.capabilities.separate_memory
            memory = estimate("memory") if unified else estimate("host_to_device")
            back = memory if unified else estimate("device_to_host")
            return Links(
                memory, back, estimate("memory"), estimate("disk_read"), estimate("disk_write"), unified=unified
            )
        file = None
        if self.files is not None:
            file = max((each.file for each in self.files.stored.values()), key=lambda each: each.stat().st_size)
        where = self.folder if self.folder is not None and self.folder.is_dir() and self.files is None else None
        return measure(self.device, model=file, disk=where).links

    def _groups(self, links: Links, training: bool) -> list[Group]:
        """The groups, with a first guess of each one's computing time: the time to read its weights from memory."""
        found = []
        for group in self.model.groups:
            weights = [weight for each in group.members for weight in self.model.members[each.key]]
            train = sum(each.nbytes for each in weights if each.parameters[0].requires_grad) if training else 0
            found.append(
                Group(
                    group.name,
                    tuple(replace(each, coded=self.model.coded_bytes(each.key)) for each in group.members),
                    compute_seconds=group.bytes / (2 * links.memory.bytes_per_second),
                    gradient_bytes=train,
                    state_bytes=2 * train,
                    together=group.together,
                )
            )
        fixed = self.model.fixed_bytes(self.module)
        if fixed:
            self.model.members[FIXED] = []
            found.append(Group(FIXED, (Member(FIXED, fixed, "buffer", FIXED),)))
        return found

    def _find_codes(self, training: bool, threads: int) -> None:
        """Find the weights that stay encoded on the host and on the link: stored as codes, and not trained.

        They are decoded on the device if that gives the same bits as decoding on the host.
        """
        found = {
            name: home
            for name, home in (self.files.homes if self.files is not None else {}).items()
            if isinstance(home, (CodedHome, JoinedHome))
            and home.host_bytes != home.nbytes
            and self.origins[self.model.weights[name]].type == "meta"
            and not (training and any(each.requires_grad for each in self.model.weights[name].parameters))
        }
        self.model.coded.update(found)
        if found and self.device.capabilities.separate_memory:
            self.model.decoding = decode_on(self.device, found.values(), threads)

    def _spare(self, budgets: Budgets) -> int:
        """Bytes that slots need in addition to the weights for direct reads from files; 0 if that is over 0.5 %."""
        if self.files is None or self.device.capabilities.separate_memory:
            return 0
        most = max((len(weights) for weights in self._weights_of_groups()), default=0)
        spare = 8 * most * DIRECT
        return spare if spare * 200 <= budgets.device and any(each.direct for each in self.files.homes.values()) else 0

    def _weights_of_groups(self) -> list[list[Weight]]:
        return [[one for each in group.members for one in self.model.members[each.key]] for group in self.model.groups]

    def _from_files(self) -> None:
        """Give weights on meta a home in their files, or the values that a library has read."""
        for name, weight in self.model.weights.items():
            if self.origins[weight].type == "meta":
                if name in self.values:
                    for each in weight.parameters:
                        set_data(each, self.values[name])
                    weight.version = weight.parameters[0]._version
                    continue
                assert self.files is not None
                weight.home = self.files.homes[name]
                weight.placeholder = placeholder(weight.like, self.device)
                for each in weight.parameters:
                    set_data(each, weight.placeholder)
                weight.withdraw()

    def _move_rest(self) -> None:
        """Move buffers, and parameters that are no plain tensors, to the device."""
        there = self.device.torch_device
        for owner in self.module.modules():
            for short, buffer in owner._buffers.items():
                if buffer is not None and buffer.device != there:
                    owner._buffers[short] = buffer.to(there)
        known = {id(each) for weight in self.model.weights.values() for each in weight.parameters}
        for parameter in self.module.parameters():
            if id(parameter) not in known and parameter.device != there:
                whole = parameter.detach()
                set_data(parameter, whole.to(there) if whole.numel() else torch.empty_like(whole, device=there))

    def _undo(self, hooks: Hooks, engine: Engine, migration: Migration) -> None:
        """Restore the model after an error."""
        hooks.remove()
        for weight, origin in self.origins.items():
            if weight.home is None and weight.parameters[0].device == origin:
                continue
            data = weight.like if origin.type == "meta" else migration.values(weight).to(origin)
            for each in weight.parameters:
                set_data(each, data)
            weight.home = None
        ours = {id(each) for weight in self.origins for each in weight.parameters}
        put_others(moved_others(self.module, ours, self.others, None, None))
        engine.close()

"""Divide a model into groups of weights: by blocks, such as the layers of a transformer, else by modules.

A weight is one piece of memory: tied parameters, and views of the same memory, are one weight. A module needs its own
parameters while it runs; a block loads the parameters of all modules in it at once. `attach` calls `read_model`; its
result, `Model` with its `Weight`s, is what all of `tiers.engine` works on, and its groups are the input of the
planner (`tiers.plan.model`). Where a model is cut is free; that a module's weights are all in its group is not. Tests:
tests/tiers/test_tiers_pieces.py, tests/tiers/test_tiers_direct_reads.py, tests/tiers/test_tiers_models.py.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from toprope.tiers.engine.model.direct_reads import read_directly
from toprope.tiers.plan.model import Group, Kind, Member, aligned
from toprope.tiers.store.absent import Absence, withdraw
from toprope.tiers.store.backing import Home
from toprope.tiers.store.memory import is_dense, without_values

__all__ = ["CLOSED", "FIXED", "Model", "Weight", "is_closed", "read_model"]

FIXED = "(buffers)"
"""Name of the group of tensors that always stay on the device and are no weights."""

_EXPERT = re.compile(r"(.*\bexperts\.\d+)\.")

CLOSED = (nn.MultiheadAttention, nn.TransformerEncoderLayer)
"""Modules that use parameters of their submodules without calling these, and choose a code path by their hooks."""


@dataclass(eq=False)
class Weight:
    """One piece of memory that one parameter has, or several that are tied.

    Attributes:
        name: the first parameter's name, as in the model's state_dict.
        names: the names of all its parameters.
        parameters: the parameters, which stay the same objects.
        like: tensor on meta with its shape, strides and dtype.
        kind: its kind for the planner.
        home: its place between uses; None if it stays on the device.
        placeholder: tensor without memory that the parameters hold between uses.
        version: its parameter's version when it came to the device to stay.
        changed: True once its values differ from those when the model was attached.
    """

    name: str
    names: list[str]
    parameters: list[nn.Parameter]
    like: torch.Tensor
    kind: Kind
    home: Home | None = None
    placeholder: torch.Tensor | None = None
    version: int = 0
    changed: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of its values."""
        return self.like.numel() * self.like.dtype.itemsize

    def withdraw(self) -> None:
        """Leave its parameters on the device without values, so that reading or writing them is an error."""
        assert self.placeholder is not None
        for each in self.parameters:
            withdraw(each, self.placeholder, self.absence)

    @cached_property
    def absence(self) -> Absence:
        """Facts for errors about its missing values; cached, as the weight is withdrawn after each use."""
        return Absence.of(self.name)


@dataclass
class Model:
    """The weights and groups of a model.

    Attributes:
        weights: weights by the name of their first parameter.
        groups: groups for the planner in the order of their definition, which need not be the order of use.
        owners: modules with parameters of their own: name, module, and the names of its weights.
        blocks: modules that are a whole group: name and module.
        atoms: by the owner's name, the module around it whose weights, submodules included, are needed all at once.
        left: parameters that stay where they are, as they are no plain dense tensors.
    """

    weights: dict[str, Weight] = field(default_factory=dict)
    groups: list[Group] = field(default_factory=list)
    owners: list[tuple[str, nn.Module, list[str]]] = field(default_factory=list)
    blocks: dict[str, nn.Module] = field(default_factory=dict)
    atoms: dict[str, str] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    read: dict[str, list[str]] = field(default_factory=dict)
    """By a module's name, the weights of its submodules that it uses without calling these."""
    members: dict[str, list[Weight]] = field(default_factory=dict)
    """Weights by the key of their group's member; weights that a module uses at the same time are one member."""
    coded: dict[str, Home] = field(default_factory=dict)
    """By name, the weights that stay encoded on the host, with their home in their files."""
    decoding: int = 0
    """Bytes of the device for decoding codes."""
    reserved: int = 0
    """Bytes of the device for slots that are not in the plan."""
    _whole: tuple[list[Group], dict[str, list[Weight]]] | None = None
    """Groups and members before weights that are computed in pieces were taken out."""

    def divide(self, weights: Sequence[Weight], reserved: int) -> None:
        """Take weights that are computed in pieces out of the groups, and reserve memory for slots of pieces."""
        if self._whole is None:
            self._whole = self.groups, self.members
        groups, members = self._whole
        self.reserved = reserved
        gone = set(weights)
        self.members = {key: [each for each in some if each not in gone] for key, some in members.items()}
        self.groups = []
        for group in groups:
            left = tuple(
                replace(each, bytes=sum(aligned(one.nbytes) for one in self.members[each.key]))
                if len(self.members[each.key]) < len(members[each.key])
                else each
                for each in group.members
                if self.members[each.key]
            )
            if left:
                self.groups.append(replace(group, members=left))

    def coded_bytes(self, key: str) -> int | None:
        """Bytes of a group's member outside the device; None if they are the same as on the device."""
        for each in self.members[key]:
            first = each.parameters[0]
            if each.home is None and not first.is_meta and first._version != each.version:
                self.coded.pop(each.name, None)  # it stays on the device, and its values were changed there
        if not any(each.name in self.coded for each in self.members[key]):
            return None
        sizes = [
            self.coded[each.name].host_bytes if each.name in self.coded else each.nbytes for each in self.members[key]
        ]
        return sum(map(aligned, sizes))

    def fixed_bytes(self, module: nn.Module) -> int:
        """Bytes that always stay on the device and are no weights: buffers, `left` and reserved memory."""
        mine = {id(each) for weight in self.weights.values() for each in weight.parameters}
        parts: dict[object, int] = {}
        others = [each for each in module.parameters() if id(each) not in mine]
        for tensor in (*module.buffers(), *others):
            for part in _parts(tensor):
                if part.is_meta or part.layout is not torch.strided:
                    parts[id(part)] = part.nbytes if part.layout is torch.strided else 0
                else:
                    parts[part.untyped_storage()._cdata] = part.untyped_storage().nbytes()
        return sum(parts.values()) + self.reserved + self.decoding


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The dense tensors inside a tensor subclass, such as the codes and scales of a quantised tensor."""
    whole: Any = tensor
    if not is_traceable_wrapper_subclass(whole):
        return [tensor]
    names, _ = whole.__tensor_flatten__()
    return [part for name in names for part in _parts(getattr(tensor, name))]


def _memory_key(parameter: torch.Tensor) -> tuple[object, ...]:
    if parameter.device.type == "meta":
        return (id(parameter),)
    storage = parameter.untyped_storage()
    return (storage._cdata, parameter.storage_offset(), parameter.shape, parameter.stride(), parameter.dtype)


def _can_be_offloaded(parameter: torch.Tensor) -> bool:
    return (
        type(parameter.data) is torch.Tensor
        and parameter.layout is torch.strided
        and not parameter.is_quantized
        and not parameter.is_conj()
        and not parameter.is_neg()
        and parameter.numel() > 0
        and is_dense(parameter)
    )


def _kind(name: str, parameter: torch.Tensor) -> Kind:
    """The kind of a parameter; integers, such as codes of few bits, are a weight in any shape."""
    if name.endswith("bias"):
        return "bias"
    return "norm" if parameter.dim() <= 1 and parameter.is_floating_point() else "weight"


def is_closed(module: nn.Module) -> bool:
    """True if its submodules must get no hooks: the module is compiled, or chooses a code path by hooks."""
    compiled = getattr(module, "_compiled_call_impl", None) is not None or "_orig_mod" in module._modules
    return compiled or isinstance(module, nn.TransformerEncoderLayer)


def read_model(model: nn.Module, small: int, resident: Collection[str] = ()) -> Model:
    """Find the weights of a model, and divide them into groups.

    Args:
        model: the model.
        small: weights of fewer bytes stay on the device, and are not combined with others into one member.
        resident: names of modules whose weights stay on the device.
    """
    found = Model()
    by_identity: dict[tuple[object, ...], Weight] = {}
    overlaps = _overlapping(model)
    atom: str | None = None
    for prefix, module in model.named_modules():
        if atom is None or not prefix.startswith(atom + "."):
            atom = prefix if prefix and (is_closed(module) or isinstance(module, CLOSED)) else None
        found.atoms[prefix] = prefix if atom is None else atom
        mine: list[str] = []
        for short, parameter in module._parameters.items():
            if parameter is None:
                continue
            name = f"{prefix}.{short}" if prefix else short
            if not _can_be_offloaded(parameter) or id(parameter) in overlaps:
                found.left.append(name)
                continue
            weight = by_identity.get(_memory_key(parameter))
            if weight is None:
                like = without_values(parameter)
                kind = _kind(short, parameter)
                weight = Weight(name, [], [], like, kind)
                by_identity[_memory_key(parameter)] = weight
                found.weights[name] = weight
            if prefix in resident:
                weight.kind = "buffer"
            weight.names.append(name)
            if not any(parameter is each for each in weight.parameters):
                weight.parameters.append(parameter)
            mine.append(weight.name)
        if mine:
            found.owners.append((prefix, module, mine))
    name_of = {name: weight.name for weight in found.weights.values() for name in weight.names}
    for prefix, module in model.named_modules():
        names = [f"{prefix}.{each}" if prefix else each for each in read_directly(module)]
        some = list(dict.fromkeys(name_of[each] for each in names if each in name_of))
        if some and found.atoms[prefix] == prefix:
            found.read[prefix] = some
    _group(model, found, small)
    return found


def _overlapping(model: nn.Module) -> set[int]:
    """Parameters that share some of their memory with others, but not all of it."""
    areas: dict[int, list[tuple[int, int, int, tuple[object, ...]]]] = defaultdict(list)
    for parameter in model.parameters():
        if parameter.device.type != "meta" and _can_be_offloaded(parameter):
            start = int(parameter.storage_offset()) * parameter.itemsize
            cdata = parameter.untyped_storage()._cdata
            areas[cdata].append((start, start + int(parameter.nbytes), id(parameter), _memory_key(parameter)))
    bad = set()
    for area in areas.values():
        for number, (start, stop, one, identity) in enumerate(area):
            for other_start, other_stop, other, other_identity in area[number + 1 :]:
                if identity != other_identity and start < other_stop and other_start < stop:
                    bad |= {one, other}
    return bad


def _group(model: nn.Module, found: Model, small: int) -> None:
    sizes = {name: weight.nbytes for name, weight in found.weights.items()}
    total = sum(sizes.values())
    names = [(prefix, name) for prefix, _, some in found.owners for name in some]
    group_of = _blocks(names, sizes, total)
    around = _containers(found.owners, group_of)
    users: dict[str, set[str]] = defaultdict(set)
    for prefix, _, some in found.owners:
        for name in some:
            users[name].add(found.atoms[prefix])
            if prefix in around:  # its group would have to stay loaded while all modules in it run
                found.weights[name].kind = "buffer"
    homes = _groups_of(found, group_of)
    for prefix, some in found.read.items():
        inside = {group for each, group in group_of.items() if not prefix or each == prefix or _is_in(each, prefix)}
        for name in some:
            users[name].add(prefix)
            if len(inside) > 1 or homes[name] != inside:
                found.weights[name].kind = "buffer"
    members: dict[str, dict[str, Member]] = {}
    bundles: dict[tuple[str, str], list[Weight]] = {}
    for prefix, _, some in found.owners:
        group = members.setdefault(group_of[prefix], {})
        for name in some:
            weight = found.weights[name]
            if weight.kind == "weight" and weight.nbytes >= small and len(users[name]) == 1:
                bundles.setdefault((group_of[prefix], found.atoms[prefix]), []).append(weight)
            else:
                group.setdefault(name, Member(name, weight.nbytes, weight.kind, name))
                found.members[name] = [weight]
    for (group_name, _), weights in bundles.items():
        key = weights[0].name
        size = sum(aligned(each.nbytes) for each in weights[:-1]) + weights[-1].nbytes
        members[group_name][key] = Member(key, size, "weight", key)
        found.members[key] = weights
    together = _needed_together(found, group_of)
    for name, some_members in members.items():
        found.groups.append(
            Group(name or "(model)", tuple(some_members.values()), together=tuple(together.get(name, ())))
        )
    modules = dict(model.named_modules())
    for name in members:
        module = modules.get(name)
        if name and module is not None and name not in around:
            found.blocks[name] = module


def _groups_of(found: Model, group_of: dict[str, str]) -> dict[str, set[str]]:
    """The groups that each weight is in."""
    result: dict[str, set[str]] = defaultdict(set)
    for prefix, _, some in found.owners:
        for name in some:
            result[name].add(group_of[prefix])
    return result


def _is_in(module: str, other: str) -> bool:
    """True if a module is in another one, by their names."""
    return module.startswith(other + ".")


def _needed_together(found: Model, group_of: dict[str, str]) -> dict[str, list[tuple[str, ...]]]:
    """By group, the keys of members that a module and the modules around it need at the same time."""
    key_of = {weight.name: key for key, weights in found.members.items() for weight in weights}
    keys: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for prefix, _, some in found.owners:
        keys[group_of[prefix], found.atoms[prefix]].update(dict.fromkeys(key_of[name] for name in some))
    homes = _groups_of(found, group_of)
    for prefix, some in found.read.items():
        for name in some:
            for group in homes[name]:
                keys[group, prefix].setdefault(key_of[name])
    result: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    for group, atom in keys:
        parts = atom.split(".")
        chain = dict.fromkeys((group, ".".join(parts[:count])) for count in range(len(parts) + 1))
        result[group].append(tuple(dict.fromkeys(key for each in chain for key in keys.get(each, ()))))
    return result


def _blocks(owned: Iterable[tuple[str, str]], sizes: dict[str, int], total: int) -> dict[str, str]:
    """Choose the group of each owner: its expert; else the outermost block with at most a third of the model's bytes;
    else the innermost block, or the owner itself.
    """
    below: dict[str, int] = defaultdict(int)
    prefixes: dict[str, list[str]] = {}
    for prefix, name in owned:
        if prefix not in prefixes:
            prefixes[prefix] = list(_numbered(prefix))
        for block in prefixes[prefix]:
            below[block] += sizes[name]
    found = {}
    for prefix, blocks in prefixes.items():
        expert = _EXPERT.match(prefix + ".")
        if expert is not None:
            found[prefix] = expert[1]
            continue
        small = [each for each in blocks if below[each] * 3 <= total]
        found[prefix] = (small or blocks[-1:] or [prefix])[0]
    return found


def _numbered(prefix: str) -> Iterator[str]:
    """ "model.layers.3" and "model.layers.3.mlp.4" of "model.layers.3.mlp.4.up"."""
    parts = prefix.split(".")
    for place, part in enumerate(parts):
        if part.isdigit():
            yield ".".join(parts[: place + 1])


def _containers(owners: Iterable[tuple[str, nn.Module, list[str]]], group_of: dict[str, str]) -> set[str]:
    """Owners and groups whose module contains modules of other groups."""
    prefixes = list(group_of)
    found = set()
    for prefix in {*prefixes, *group_of.values()}:
        inner = [each for each in prefixes if each != prefix and (not prefix or each.startswith(prefix + "."))]
        mine = group_of.get(prefix, prefix)
        if any(group_of[each] != mine for each in inner) or not prefix:
            found.add(prefix)
    return found

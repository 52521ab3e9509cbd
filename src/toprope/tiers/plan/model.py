"""Input and result of the planner: groups, budgets, links, loads. Pure: names, bytes and seconds, no tensors.

A *group* is a set of weights that are loaded to the device together, such as one block of a transformer. A *use* is
one run of a group, forward or backward; the uses of one step make the *order*, which repeats. Groups that do not stay
on the device are loaded into a *ring* of equal slots in its memory. These types are the border between `tiers.plan`
and its callers (`tiers.engine`, `toprope tiers plan`); those in `tiers.plan.__all__` are public. Tests:
tests/tiers/test_tiers_plan.py, tests/tiers/test_tiers_placement.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from toprope.sizes import decimal
from toprope.tiers.plan.clock import Span

__all__ = [
    "ALIGNMENT",
    "Budgets",
    "Group",
    "Home",
    "Link",
    "LinkBytes",
    "Links",
    "Load",
    "Member",
    "Part",
    "Plan",
    "Use",
    "aligned",
    "slots_text",
    "training_order",
    "uses",
]

Word = Literal["measured", "profile", "estimate"]
"""Source of a figure: a measurement on this machine, the description of a chip, or a guess."""

Kind = Literal["weight", "norm", "bias", "buffer"]
"""Kind of a group's tensor. All but weights stay on the device."""

What = Literal["weights", "gradients", "states", "activations"]
"""Kind of a group's data. All but the weights exist only in training."""

Tier = Literal["device", "host", "disk"]

ALIGNMENT = 256
"""Alignment of tensors on the device, in slots and outside of them, in bytes."""


def aligned(size: int, alignment: int = ALIGNMENT) -> int:
    """A size in bytes, rounded up to a multiple."""
    return -(-size // alignment) * alignment


def slots_text(count: int, size: int) -> str:
    """ "2 slots of 820.0 MB"."""
    return f"{count} slot{'' if count == 1 else 's'} of {decimal(size)}"


@dataclass(frozen=True, slots=True)
class Member:
    """One tensor of a group.

    Attributes:
        name: its name in the model's state_dict.
        bytes: its bytes on the device.
        kind: its kind; norms, biases and buffers always stay on the device.
        storage: name of the memory that tied weights share; "" for a tensor with its own memory.
        coded: its bytes on the host, on the disk and on the links if it is encoded there; None for the same bytes.
    """

    name: str
    bytes: int
    kind: Kind = "weight"
    storage: str = ""
    coded: int | None = None

    @property
    def key(self) -> str:
        """Name of its memory, the same for all tensors that share it."""
        return self.storage or self.name

    @property
    def away(self) -> int:
        """Its bytes outside the device."""
        return self.bytes if self.coded is None else self.coded


@dataclass(frozen=True, slots=True)
class Group:
    """Tensors that are loaded to the device together.

    Attributes:
        name: its name, such as "model.layers.3".
        members: its tensors, in their order in a slot.
        compute_seconds: time of one forward run; a backward run takes twice as long unless its use has its own time.
        gradient_bytes: bytes of all gradients that a training step makes for it.
        state_bytes: bytes of its optimizer states.
        activation_bytes: bytes that forward saves for backward, if they are moved out; 0 if they stay.
        optimizer_seconds: time of its part of the optimizer's step.
        together: sets of members' keys that one module and its submodules need at the same time; None if not known.
    """

    name: str
    members: tuple[Member, ...]
    compute_seconds: float = 0.0
    gradient_bytes: int = 0
    state_bytes: int = 0
    activation_bytes: int = 0
    optimizer_seconds: float = 0.0
    together: tuple[tuple[str, ...], ...] | None = None

    @classmethod
    def of(cls, name: str, size: int, compute_seconds: float = 0.0) -> Group:
        """A group with one weight of `size` bytes."""
        return cls(name, (Member(name, size),), compute_seconds)

    @property
    def bytes(self) -> int:
        """Bytes of its tensors on the device, tied ones once."""
        return sum({each.key: each.bytes for each in self.members}.values())


@dataclass(frozen=True, slots=True)
class Use:
    """One run of a group in a step.

    Attributes:
        group: its name.
        backward: True if gradients are computed in it.
        seconds: its computing time; None for the group's.
    """

    group: str
    backward: bool = False
    seconds: float | None = None


def uses(order: Iterable[Use | str]) -> tuple[Use, ...]:
    """Make uses from an order in which a name alone is a forward run."""
    return tuple(Use(each) if isinstance(each, str) else each for each in order)


def training_order(forward: Iterable[Use | str]) -> tuple[Use, ...]:
    """The order of a training step: forward, then backward from the last to the first."""
    first = uses(forward)
    return (*first, *(Use(each.group, True) for each in reversed(first)))


@dataclass(frozen=True, slots=True)
class Budgets:
    """Budgets of the tiers in bytes.

    Attributes:
        device: the device's budget, for weights that stay, slots and reserve together.
        host: the budget of the host's memory.
        disk: free bytes of the disk; None without a disk.
        reserve: part of the device's budget that is left for computing.
    """

    device: int
    host: int = 0
    disk: int | None = None
    reserve: int = 0


@dataclass(frozen=True, slots=True)
class Link:
    """Bandwidth from one tier to another.

    Attributes:
        bytes_per_second: the bandwidth.
        word: kind of its source.
        source: description of the source, such as the file that was read.
    """

    bytes_per_second: float
    word: Word = "estimate"
    source: str = ""

    def seconds(self, size: float) -> float:
        """Seconds that `size` bytes take."""
        return size / self.bytes_per_second


@dataclass(frozen=True, slots=True)
class Links:
    """Bandwidths between tiers.

    Attributes:
        disk_read, disk_write: disk to host and back; reads and writes share the disk. None where there is no disk.
        host_to_device, device_to_host: the two directions, which do not disturb each other.
        memory: bytes copied a second in the host's memory; a copy reads and writes each byte.
        unified: the device's memory is the host's, as on the CPU: reads from the disk end in the slot, without a copy.
    """

    host_to_device: Link
    device_to_host: Link
    memory: Link
    disk_read: Link | None = None
    disk_write: Link | None = None
    unified: bool = False


@dataclass(frozen=True, slots=True)
class Load:
    """One load of a group into a slot.

    Attributes:
        use: index of the use that it is for.
        group: the group that is loaded.
        bytes: bytes of the tensors that are loaded, without alignment.
        source: the tier that it comes from; the slowest one if a group is in several (tied weights).
        replaces: the group whose slot it takes; "" for an empty slot. While the ring is not full, any empty slot will
            do.
        after: index of the use after which it may begin: the last one of the group that it replaces. A negative index
            is a use of the step before, counted from its end (-1 is its last use), so that the first groups of the
            next step are loaded in time.
    """

    use: int
    group: str
    bytes: int
    source: Tier
    replaces: str
    after: int


@dataclass(frozen=True, slots=True)
class Home:
    """Tier of one kind of a group's data between its uses.

    Attributes:
        group: the group.
        what: the kind. "weights" are those that can move: not norms, biases, buffers and small tensors.
        tier: the tier.
        bytes: bytes that it takes there, aligned; tied weights are counted with the first group that has them.
        members: for weights, the names of the tensors.
    """

    group: str
    what: What
    tier: Tier
    bytes: int
    members: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a group that is too large for a slot.

    Attributes:
        name: its name in the plan, such as "model.layers.3 (2 of 3)".
        group: the group.
        members: the names of its tensors.
    """

    name: str
    group: str
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LinkBytes:
    """Bytes over each link in one step after the first."""

    host_to_device: int = 0
    device_to_host: int = 0
    disk_read: int = 0
    disk_write: int = 0


@dataclass(frozen=True)
class Plan:
    """Placement of all groups, the loads of a step, its predicted time and its lower limit.

    Attributes:
        groups: the groups, those in `split` as their parts.
        order: the uses of one step, with parts.
        traced: the given uses, without parts; `matches` compares an order with them.
        training: True if gradients and optimizer states are moved too.
        budgets, links: the budgets and links that it was made for.
        fixed: names of tensors that stay on the device though their group may not: norms, biases, buffers, tensors
            below 1 MiB, and tied weights if that saves time.
        fixed_bytes: their bytes, tied ones once, aligned.
        resident, host, disk: names of groups by the slowest tier of the weights that they need, in the order of their
            first use.
        resident_bytes: bytes of the device's budget for `fixed`, `resident` and other data that stays there (see
            `homes`), aligned.
        homes: tier of everything, by group and kind.
        slots, slot_bytes: the ring; no slots if nothing moves.
        staging: number of buffers of `slot_bytes` in the host's budget into which groups are read from the disk ahead
            of their slot.
        working_bytes: in training, bytes of the largest gradients and saved activations while they are made. They are
            not in the other figures; the caller's reserve is for them.
        loads: the loads of one step, in the order in which they begin.
        carried: groups that are in the ring when a step begins; load them before the first step. In training there are
            none, as the optimizer changes the weights and uses the slots for its tiles.
        split: the parts of groups that are larger than a slot can be.
        traffic: bytes over each link in a step.
        compute_seconds: time of a step without any waiting.
        predicted_seconds: time of a step, from the ring on a virtual clock.
        limit_seconds: lower limit of a step with this placement, for any software.
        limited_by: the resource that sets the limit: "compute", or a link such as "host -> device".
        reasons: explanations of the plan, in words.
        spans: the jobs of one step on the virtual clock, from its begin, cut at both ends of the step.
    """

    groups: tuple[Group, ...]
    order: tuple[Use, ...]
    traced: tuple[Use, ...]
    training: bool
    budgets: Budgets
    links: Links
    fixed: tuple[str, ...]
    fixed_bytes: int
    resident: tuple[str, ...]
    host: tuple[str, ...]
    disk: tuple[str, ...]
    resident_bytes: int
    homes: tuple[Home, ...]
    slots: int
    slot_bytes: int
    staging: int
    working_bytes: int
    loads: tuple[Load, ...]
    carried: tuple[str, ...]
    split: tuple[Part, ...]
    traffic: LinkBytes
    compute_seconds: float
    predicted_seconds: float
    limit_seconds: float
    limited_by: str
    reasons: tuple[str, ...] = ()
    spans: tuple[Span, ...] = field(default=(), repr=False)

    def matches(self, order: Sequence[Use | str]) -> bool:
        """True if an order is the one that the plan was made for; otherwise the plan is not valid for it."""
        return [(each.group, each.backward) for each in uses(order)] == [
            (each.group, each.backward) for each in self.traced
        ]

    @property
    def ratio(self) -> float:
        """Predicted time of a step divided by its lower limit; 1.0 is the fastest possible."""
        return self.predicted_seconds / self.limit_seconds if self.limit_seconds else 1.0

    @property
    def device_bytes(self) -> int:
        """Bytes of the device's budget in use: data that stays, and the ring."""
        return self.resident_bytes + self.slots * self.slot_bytes

    def bytes_in(self, tier: Tier, what: What | None = None) -> int:
        """Bytes in a tier, of one kind or of all; without `fixed` and the ring."""
        return sum(each.bytes for each in self.homes if each.tier == tier and what in (None, each.what))

    def streamed(self, group: str) -> tuple[Member, ...]:
        """The tensors that a load of a group brings, in their order in the slot, tied ones once."""
        stays = {*self.fixed, *(name for each in self.homes if each.tier == "device" for name in each.members)}
        members = next(each.members for each in self.groups if each.name == group)
        return tuple({each.key: each for each in reversed(members) if each.name not in stays}.values())[::-1]

    @property
    def hits(self) -> int:
        """Uses of a step whose group is on the device without a load."""
        return len(self.order) - len(self.loads)

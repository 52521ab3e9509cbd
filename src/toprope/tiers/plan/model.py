"""What a plan is made from and what it says: groups, budgets, links, loads. Pure: names, bytes and seconds, no tensors.

A *group* is what is brought to the device together, such as one block of a transformer. A *use* is one run of a group,
forward or backward; the uses of one step make the *order*, which repeats. Groups that do not stay on the device go
through a *ring* of equal slots in its memory.
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
    "Links",
    "Load",
    "Member",
    "Part",
    "Plan",
    "Traffic",
    "Use",
    "aligned",
    "slots_text",
    "training_order",
    "uses",
]

Word = Literal["measured", "profile", "estimate"]
"""Where a figure comes from: this machine, the description of a chip, or a guess."""

Kind = Literal["weight", "norm", "bias", "buffer"]
"""What a tensor of a group is. All but weights stay on the device."""

What = Literal["weights", "gradients", "states", "activations"]
"""What of a group lies somewhere. All but the weights are there in training only."""

Tier = Literal["device", "host", "disk"]

ALIGNMENT = 256
"""Tensors begin in a slot, and in the memory of what stays, at multiples of so many bytes."""


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
        name: as in the model's state_dict.
        bytes: its bytes as stored.
        kind: what it is; norms, biases and buffers always stay on the device.
        storage: the same for tensors that share their memory (tied weights); empty for one of its own.
        coded: its bytes on the host, on the disk and on the links, where it lies there as codes; None for the same.
    """

    name: str
    bytes: int
    kind: Kind = "weight"
    storage: str = ""
    coded: int | None = None

    @property
    def key(self) -> str:
        """What is the same for all tensors with this memory."""
        return self.storage or self.name

    @property
    def away(self) -> int:
        """Its bytes where it is not on the device."""
        return self.bytes if self.coded is None else self.coded


@dataclass(frozen=True, slots=True)
class Group:
    """What is brought to the device together.

    Attributes:
        name: its name, such as "model.layers.3".
        members: its tensors, in the order in which they lie in a slot.
        compute_seconds: of one forward run; a backward run takes twice as long where its use does not say otherwise.
        gradient_bytes: of all gradients that a training step makes for it.
        state_bytes: of what the optimizer keeps for it.
        activation_bytes: of what forward saves for backward, where that is moved out; 0 where it stays.
        optimizer_seconds: of its part of the optimizer's step.
        together: keys of members that are on the device at the same time, as one module uses them, or a module in it;
            None where that is not known.
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
        """Of its tensors as stored, each memory once."""
        return sum({each.key: each.bytes for each in self.members}.values())


@dataclass(frozen=True, slots=True)
class Use:
    """One run of a group in a step.

    Attributes:
        group: its name.
        backward: whether gradients are computed in it.
        seconds: how long it computes; None for what its group says.
    """

    group: str
    backward: bool = False
    seconds: float | None = None


def uses(order: Iterable[Use | str]) -> tuple[Use, ...]:
    """An order in full; a name alone is a forward run."""
    return tuple(Use(each) if isinstance(each, str) else each for each in order)


def training_order(forward: Iterable[Use | str]) -> tuple[Use, ...]:
    """The order of a training step: forward, then backward from the last to the first."""
    first = uses(forward)
    return (*first, *(Use(each.group, True) for each in reversed(first)))


@dataclass(frozen=True, slots=True)
class Budgets:
    """How many bytes each tier may hold.

    Attributes:
        device: of the device; what stays, the slots and the reserve fit into it, always.
        host: of the host's memory.
        disk: free bytes of the disk; None where there is no disk tier.
        reserve: bytes of the device's budget that are left alone, for what computing itself needs.
    """

    device: int
    host: int = 0
    disk: int | None = None
    reserve: int = 0


@dataclass(frozen=True, slots=True)
class Link:
    """How fast bytes go from one tier to another.

    Attributes:
        bytes_per_second: the speed.
        word: where it comes from.
        source: in more words, such as the file that was read.
    """

    bytes_per_second: float
    word: Word = "estimate"
    source: str = ""

    def seconds(self, size: float) -> float:
        """Seconds that `size` bytes take."""
        return size / self.bytes_per_second


@dataclass(frozen=True, slots=True)
class Links:
    """The speeds between tiers.

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
    """Bring a group into a slot.

    Attributes:
        use: the place in the order of the use that it is for.
        group: what is loaded.
        bytes: of the tensors that are loaded, each of its true length.
        source: the tier it comes from; of a group in several tiers (tied weights), the slowest.
        replaces: the group whose slot it takes, empty for an empty slot; while the ring is not full yet, any empty
            slot does as well.
        after: it may begin once the use at this place has ended, the last reader of what it replaces. Negative: a
            place of the step before, counted from its end (-1 is its last use), so that the next step's first groups
            are there in time.
    """

    use: int
    group: str
    bytes: int
    source: Tier
    replaces: str
    after: int


@dataclass(frozen=True, slots=True)
class Home:
    """Where something of a group lies between its uses.

    Attributes:
        group: the group.
        what: what of it. "weights" is what of it can move: not its norms, biases, buffers and small tensors.
        tier: where.
        bytes: how much room it takes there, aligned; tied weights are counted with the first group that has them.
        members: of weights, the names of the tensors.
    """

    group: str
    what: What
    tier: Tier
    bytes: int
    members: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a group that is too large for a slot and is loaded tensor by tensor.

    Attributes:
        name: what the plan calls it, such as "model.layers.3 (2 of 3)".
        group: the group.
        members: the names of its tensors.
    """

    name: str
    group: str
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes over each link in one step, once the first step is over."""

    host_to_device: int = 0
    device_to_host: int = 0
    disk_read: int = 0
    disk_write: int = 0


@dataclass(frozen=True)
class Plan:
    """Where everything lies, what is loaded when, how long a step takes, and how long it must take at least.

    Attributes:
        groups: the groups, those of `split` in their parts.
        order: the uses of one step, with parts.
        traced: the uses as they were given, without parts; `matches` holds an order against them.
        training: whether gradients and optimizer states are moved too.
        budgets, links: what it was made for.
        fixed: names of tensors that stay on the device though their group may not: norms, biases, buffers, tensors
            below 1 MiB, and tied weights where they are worth it.
        fixed_bytes: theirs, each memory once, aligned.
        resident, host, disk: names of groups by where what they need lies (the slowest tier counts), in the order of
            their first use.
        resident_bytes: of the device's budget, for `fixed`, `resident` and what else stays there (`homes`), aligned.
        homes: where everything lies, by group and kind.
        slots, slot_bytes: the ring; no slots where nothing moves.
        staging: buffers of `slot_bytes` in the host's budget into which groups on disk are read ahead of their slot.
        working_bytes: in training, what the largest gradients and saved activations take while they are made. It is
            not in the arena; the caller's reserve is for it.
        loads: the loads of one step, in the order in which they are issued.
        carried: groups that a step finds in the ring since the step before; load them before the first one. In
            training there are none: the optimizer changes the weights, and its tiles go through the slots.
        split: the pieces of groups that are larger than a slot can be.
        traffic: bytes over each link in a step.
        compute_seconds: of a step, if nothing had to be waited for.
        predicted_seconds: of a step, by running the ring on a virtual clock.
        limit_seconds: no step with this placement can be faster, whatever the software.
        limited_by: what sets the limit: "compute", or a link such as "host -> device".
        reasons: in words, why the plan is as it is.
        spans: what the clock says of one step, from its beginning; what began before it or ends after it is cut.
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
    traffic: Traffic
    compute_seconds: float
    predicted_seconds: float
    limit_seconds: float
    limited_by: str
    reasons: tuple[str, ...] = ()
    spans: tuple[Span, ...] = field(default=(), repr=False)

    def matches(self, order: Sequence[Use | str]) -> bool:
        """Whether a step runs these groups in this order; where it does not, the plan no longer holds."""
        return [(each.group, each.backward) for each in uses(order)] == [
            (each.group, each.backward) for each in self.traced
        ]

    @property
    def ratio(self) -> float:
        """How many times the limit a step takes; 1.0 is as fast as can be."""
        return self.predicted_seconds / self.limit_seconds if self.limit_seconds else 1.0

    @property
    def device_bytes(self) -> int:
        """Bytes of the device's budget in use: what stays, and the ring."""
        return self.resident_bytes + self.slots * self.slot_bytes

    def bytes_in(self, tier: Tier, what: What | None = None) -> int:
        """Bytes that lie in a tier, of one kind or of all; without `fixed` and the ring."""
        return sum(each.bytes for each in self.homes if each.tier == tier and what in (None, each.what))

    def streamed(self, group: str) -> tuple[Member, ...]:
        """The tensors that a load of a group brings, in the order in which they lie in the slot; each memory once."""
        stays = {*self.fixed, *(name for each in self.homes if each.tier == "device" for name in each.members)}
        members = next(each.members for each in self.groups if each.name == group)
        return tuple({each.key: each for each in reversed(members) if each.name not in stays}.values())[::-1]

    @property
    def hits(self) -> int:
        """Uses of a step whose group is on the device without a load."""
        return len(self.order) - len(self.loads)

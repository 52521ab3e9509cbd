"""Shared state of the processes of a session on Ray: named instances, places, saved states, ends and key-value pairs.

The session actor is one (`ray.session_actor`), one for each session; all processes of the session call it by
`RayBackend.ask` and `tell`, so each public method here is a remote call, runs in one of many threads, and may not fail
for an instance that is gone. `toprope status` calls `holders` of sessions that may be of another version. Tests:
tests/functions/test_functions_ray_manager.py, and (slow) tests/functions/test_functions_ray.py.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from toprope.functions.exceptions import CODES, YRRuntimeError
from toprope.functions.key_value_store import Pairs
from toprope.functions.lifecycle import State
from toprope.functions.ray.attach import NAMESPACE
from toprope.functions.ray.failures import RaisedError
from toprope.functions.ray.nodes.cluster_view import Seen, charged
from toprope.functions.scheduling.holders import Holder

__all__ = ["Manager", "Placed", "living_names", "seen_nodes"]

_FRESH = 0.25
"""Time in which every node reports its free resources, in seconds."""


@dataclass(frozen=True)
class Placed:
    """Location of an instance that runs, and what it holds there.

    Attributes:
        node: Ray's id of the node.
        ip: the node's address.
        pid: the process.
        vendor, cards: its cards: their vendor, and their numbers on the node.
        labels: of the instance.
        grace: seconds that its end may take.
        of: its class.
        cpu, memory, resources: what it holds, as of `Holder`.
        amounts: what it holds by Ray's names.
    """

    node: str
    ip: str
    pid: int
    vendor: str = ""
    cards: tuple[int, ...] = ()
    labels: tuple[str, ...] = ()
    grace: float = 30.0
    of: str = ""
    cpu: int = 0
    memory: int = 0
    resources: Mapping[str, float] = field(default_factory=dict)
    amounts: Mapping[str, float] = field(default_factory=dict)


@dataclass
class _Named:
    namespace: str
    name: str
    blob: bytes = field(repr=False, default=b"")


def seen_nodes() -> list[Seen]:
    """Return the living nodes with their free resources. For processes on the cluster."""
    import ray
    from ray._private import state

    free = state.available_resources_per_node()  # public calls tell it of the whole cluster alone
    return [
        Seen(
            node["NodeID"], node["NodeManagerAddress"], node["Resources"], free.get(node["NodeID"], {}),
            node.get("Labels", {}),
        )
        for node in ray.nodes()
        if node["Alive"]
    ]  # fmt: skip


def living_names() -> set[str]:
    """Return the names of all sessions' actors on Ray, including those that wait for resources."""
    from ray import util

    return {each["name"] for each in util.list_named_actors(all_namespaces=True) if each["namespace"] == NAMESPACE}


class Manager:
    """The manager of a session: state that its processes share.

    Attributes:
        pairs: key-value pairs.
    """

    def __init__(self) -> None:
        self.pairs = Pairs()
        self._saved: dict[str, bytes] = {}
        self._failures: dict[str, bytes] = {}
        self._placed: dict[str, Placed] = {}
        self._made: set[str] = set()
        self._asked: dict[str, str] = {}
        self._handles: dict[str, int | None] = {}
        self._named: dict[str, _Named] = {}
        self._groups: dict[str, list[str]] = {}
        self._active: dict[str, float] = {}

    # Pairs

    def set_pairs(self, pairs: Mapping[str, bytes], only_new: bool, ttl: float) -> str:
        """Store pairs; see `Pairs.set_all`."""
        return self.pairs.set_all(pairs, only_new=only_new, ttl=ttl)

    def get_pairs(self, keys: Sequence[str]) -> list[bytes | None]:
        """The bytes under keys."""
        return self.pairs.get(keys)

    def delete_pairs(self, keys: Sequence[str]) -> list[str]:
        """Delete keys. Return those that did not exist."""
        return self.pairs.delete(keys)

    # Instances

    def save(self, id: str, state: bytes) -> None:
        """Save the state of an instance."""
        self._saved[id] = state

    def saved(self, id: str) -> bytes | None:
        """Return the last saved state of an instance."""
        return self._saved.get(id)

    def ask_for(self, id: str, of: str) -> None:
        """Record the request for an instance of a class of this name."""
        self._asked[id] = of

    def handles(self, id: str, count: int | None) -> None:
        """Set the number of handles to an instance in the program; None if it is unknown."""
        self._handles[id] = count

    def place(self, id: str, placed: Placed) -> None:
        """Record the location of an instance whose process runs."""
        self._placed[id] = placed

    def made(self, id: str) -> None:
        """Record that the constructor of an instance has run."""
        self._made.add(id)

    def is_made(self, id: str) -> bool:
        """True if the constructor of an instance has run."""
        return id in self._made

    def placed(self, id: str) -> Placed | None:
        """Return the location of an instance; None before it has its resources."""
        return self._placed.get(id)

    def holders(self) -> list[Holder]:
        """The living instances, those that wait for their resources too."""
        there = living_names()
        found = []
        for id in dict.fromkeys([*self._asked, *self._placed]):
            if id not in there or id in self._failures:
                continue
            placed = self._placed.get(id)
            state = State.WAITING if placed is None else State.READY if id in self._made else State.STARTING
            placed = Placed("", "", 0, of=self._asked[id]) if placed is None else placed
            named = self._named.get(id)
            found.append(
                Holder(
                    id, placed.of, str(state), placed.node, placed.pid, placed.cpu, placed.memory,
                    {placed.vendor: placed.cards} if placed.vendor else {}, placed.resources,
                    "" if named is None else named.name, "" if named is None else named.namespace,
                    self._handles.get(id),
                )
            )  # fmt: skip
        return found

    def neighbours(self) -> dict[str, list[tuple[str, ...]]]:
        """The labels of the instances on each node."""
        there = living_names()
        found: dict[str, list[tuple[str, ...]]] = {}
        for id, placed in list(self._placed.items()):
            if id in there and id not in self._failures:
                found.setdefault(placed.node, []).append(placed.labels)
        return found

    def fail(self, id: str, data: bytes) -> None:
        """Record why an instance has ended, or will never start; later reasons are ignored."""
        self._failures.setdefault(id, data)
        self._named.pop(id, None)
        self._saved.pop(id, None)
        self._asked.pop(id, None)
        self._handles.pop(id, None)

    def failure(self, id: str) -> bytes | None:
        """Return the recorded reason of an instance's end."""
        return self._failures.get(id)

    def forget_end(self, id: str) -> None:
        """Forget the end of an instance: its name is used again."""
        self._failures.pop(id, None)
        self._placed.pop(id, None)
        self._made.discard(id)
        self._handles.pop(id, None)

    def name(self, id: str, namespace: str, name: str, blob: bytes) -> None:
        """Register the name of an instance, with its class for later look-ups."""
        self._named[id] = _Named(namespace, name, blob)

    def class_of(self, id: str) -> bytes | None:
        """The class of a named instance."""
        found = self._named.get(id)
        return None if found is None else found.blob

    def names(self) -> dict[str, tuple[str, str]]:
        """Namespace and name of the named instances of this session by their ids."""
        return {id: (each.namespace, each.name) for id, each in list(self._named.items())}

    # Functions

    def active(self, pool: str) -> None:
        """Record that a worker has run calls with these options."""
        self._active[pool] = time.monotonic()

    def idle_for(self, pool: str) -> float | None:
        """Seconds since a worker has worked for calls with these options; None for never."""
        last = self._active.get(pool)
        return None if last is None else time.monotonic() - last

    # The cluster

    def view(self, fresh: bool = False) -> list[Seen]:
        """The nodes of the cluster, with what is free of them now.

        Args:
            fresh: whether to wait until they have reported the latest grants.
        """
        if fresh:
            time.sleep(_FRESH)
        there = living_names()
        held = [(each.node, each.amounts) for id, each in list(self._placed.items()) if id in there]
        return charged(seen_nodes(), held)

    # Groups

    def group(self, name: str, members: list[str]) -> None:
        """The ids of a group's members by rank."""
        self._groups[name] = members

    def context(self, id: str, name: str, timeout: float) -> Any:
        """Return the context of a group's member, once all members have their resources."""
        until = time.monotonic() + timeout
        members = self._groups.get(name)
        if members is None or id not in members:
            return None
        while not all(each in self._placed for each in members):
            if time.monotonic() > until:
                raise RaisedError.of(YRRuntimeError(f"group {name} does not start", CODES["group schedule failed"]))
            time.sleep(0.02)
        models = {(seen.id, vendor): model for seen in seen_nodes() for vendor, model in _models(seen)}
        told = []
        for each in members:
            placed = self._placed[each]
            model = f"{placed.vendor}/{models.get((placed.node, placed.vendor), '')}" if placed.vendor else ""
            told.append((placed.node, model, placed.cards))
        return members.index(id), len(members), told


def _models(seen: Seen) -> list[tuple[str, str]]:
    from toprope.functions.ray.nodes.cluster_view import node_of

    return [(card.vendor, card.model) for card in node_of(seen).cards]

"""The actor that serves a session: what its processes have to know of each other, and what workers create."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from toprope.functions.exceptions import CODES, YRRuntimeError
from toprope.functions.holders import Holder
from toprope.functions.pairs import Pairs
from toprope.functions.ray.failures import RaisedError
from toprope.functions.ray.view import Seen

if TYPE_CHECKING:
    from toprope.functions.backend import Code
    from toprope.functions.options import Config

__all__ = ["AT_ONCE", "Manager", "Placed", "seen_nodes"]

AT_ONCE = 100
"""Requests that a manager works on at once."""

_FRESH = 0.25
"""Seconds within which every node has told what is free of it."""


@dataclass(frozen=True)
class Placed:
    """Where an instance is.

    Attributes:
        node: Ray's id of the node.
        ip: the node's address.
        pid: the process.
        vendor, cards: whose cards it was given, and their numbers on the node.
        labels: of the instance.
        grace: seconds that its end may take.
        of: its class.
        cpu, memory, resources: what it holds, as of `Holder`.
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


@dataclass
class _Named:
    namespace: str
    name: str
    blob: bytes = field(repr=False, default=b"")


def seen_nodes() -> list[Seen]:
    """The living nodes, with what is free of them. For processes on the cluster."""
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


class Manager:
    """The manager of a session. Its driver owns it, so that it ends with the driver however that ends.

    Args:
        config: of the session.
    """

    def __init__(self, config: Config) -> None:
        from toprope.functions import current
        from toprope.functions.ray.backend import RayBackend

        self._lock = threading.Lock()
        self._pairs = Pairs()
        self._saved: dict[str, bytes] = {}
        self._failures: dict[str, bytes] = {}
        self._placed: dict[str, Placed] = {}
        self._made: set[str] = set()
        self._named: dict[str, _Named] = {}
        self._groups: dict[str, list[str]] = {}
        self._active: dict[str, float] = {}
        self.backend = RayBackend(config, None, is_manager=True)
        current.set_backend(self.backend)

    # Pairs

    def kv_set_all(self, pairs: dict[str, bytes], only_new: bool, ttl: float) -> str:
        """Keep pairs; see `Pairs.set_all`."""
        with self._lock:
            return self._pairs.set_all(pairs, time.monotonic(), only_new=only_new, ttl=ttl)

    def kv_get(self, keys: list[str]) -> list[bytes | None]:
        """The bytes under keys."""
        with self._lock:
            return self._pairs.get(keys, time.monotonic())

    def kv_del(self, keys: list[str]) -> list[str]:
        """Forget keys; those that were not there are returned."""
        with self._lock:
            return self._pairs.delete(keys, time.monotonic())

    # Instances

    def save(self, id: str, state: bytes) -> None:
        """Keep the state of an instance."""
        self._saved[id] = state

    def saved(self, id: str) -> bytes | None:
        """The state of an instance that was kept last."""
        return self._saved.get(id)

    def place(self, id: str, placed: Placed) -> None:
        """An instance has its resources, and its process runs."""
        self._placed[id] = placed

    def made(self, id: str) -> None:
        """The constructor of an instance has run."""
        self._made.add(id)

    def is_made(self, id: str) -> bool:
        """True if the constructor of an instance has run."""
        return id in self._made

    def placed(self, id: str) -> Placed | None:
        """Where an instance is; None before it has its resources."""
        return self._placed.get(id)

    def holders(self) -> list[Holder]:
        """The instances that have their resources."""
        found = []
        for id, placed in list(self._placed.items()):
            if id not in self._failures:
                named = self._named.get(id)
                found.append(
                    Holder(
                        id,
                        placed.of,
                        "runs" if id in self._made else "its constructor runs",
                        placed.node,
                        placed.pid,
                        placed.cpu,
                        placed.memory,
                        {placed.vendor: placed.cards} if placed.vendor else {},
                        placed.resources,
                        "" if named is None else named.name,
                        "" if named is None else named.namespace,
                    )
                )  # fmt: skip
        return found

    def neighbours(self) -> dict[str, list[tuple[str, ...]]]:
        """The labels of the instances on each node."""
        found: dict[str, list[tuple[str, ...]]] = {}
        for id, placed in list(self._placed.items()):
            if id not in self._failures:
                found.setdefault(placed.node, []).append(placed.labels)
        return found

    def fail(self, id: str, data: bytes) -> None:
        """Why an instance has ended, or will never begin; later reasons are not heeded."""
        self._failures.setdefault(id, data)
        self._named.pop(id, None)
        self._saved.pop(id, None)

    def failure(self, id: str) -> bytes | None:
        """Why an instance has ended."""
        return self._failures.get(id)

    def begin_anew(self, id: str) -> None:
        """An instance of the name of one that has ended."""
        self._failures.pop(id, None)
        self._placed.pop(id, None)
        self._made.discard(id)

    def name(self, id: str, namespace: str, name: str, blob: bytes) -> None:
        """An instance has a name; its class, for those who look for it."""
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
        """A worker has worked for calls with these options."""
        self._active[pool] = time.monotonic()

    def idle_for(self, pool: str) -> float | None:
        """Seconds since a worker has worked for calls with these options; None for never."""
        last = self._active.get(pool)
        return None if last is None else time.monotonic() - last

    # The cluster

    def view(self, fresh: bool = False) -> list[Seen]:
        """The nodes.

        Args:
            fresh: whether to wait until they have told what has just been given out.
        """
        if fresh:
            time.sleep(_FRESH)
        return seen_nodes()

    # Groups

    def group(self, name: str, members: list[str]) -> None:
        """The ids of a group's members by rank."""
        self._groups[name] = members

    def context(self, id: str, name: str, timeout: float) -> Any:
        """What a member may know of its group, once all members have their resources."""
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

    # For workers

    def request(self, operation: str, arguments: tuple[Any, ...]) -> Any:
        """What a worker asks of the API that only a process may do that lives as long as the session."""
        try:
            return self.backend.request(operation, *arguments)
        except Exception as error:
            raise RaisedError.of(error) from None

    def create(self, blob: bytes, packed: list[Any], options: bytes) -> str:
        """Create an instance for a worker: it does not end with the worker."""
        arguments, keywords = packed
        return self.backend.create(self._code(blob), arguments, keywords, pickle.loads(options))

    def terminate(self, id: str, is_sync: bool) -> None:
        """End an instance for a worker."""
        self.backend.terminate(id, is_sync)

    def end_all(self) -> None:
        """The session ends: end what workers have created."""
        self.backend.end_instances()

    def _code(self, blob: bytes) -> Code:
        from toprope.functions.backend import Code

        return Code(pickle.loads(blob))


def _models(seen: Seen) -> list[tuple[str, str]]:
    from toprope.functions.ray.view import node_of

    return [(card.vendor, card.model) for card in node_of(seen).cards]

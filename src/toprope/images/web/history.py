"""What each client has made: the pictures with their parameters, newest first, so many and no more."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Entry", "Histories", "caption", "loras_of", "parameters"]

SHOWN = ("instruction", "negative", "steps", "guidance", "image_guidance", "refine_strength", "cfg_norm", "size", "fit")


@dataclass(frozen=True)
class Entry:
    """One picture that was made.

    Attributes:
        name: of its source, as the client knows it.
        picture: the file of the result.
        sidecar: the file with its record.
        seed: of this picture.
        record: everything needed to repeat it.
        before: the file of what was edited, as it compares with the result.
        when: seconds since 1970.
    """

    name: str
    picture: Path
    sidecar: Path
    seed: int
    record: Mapping[str, Any]
    before: Path | None = None
    when: float = field(default_factory=time.time)


class Histories:
    """Entries by client.

    Args:
        most: entries kept of each client.
        clients: clients kept; the one that made nothing for the longest goes first.
    """

    def __init__(self, most: int = 60, clients: int = 200) -> None:
        self._most, self._clients = most, clients
        self._entries: OrderedDict[str, deque[Entry]] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, client: str, entry: Entry) -> list[Entry]:
        """Keep an entry; those that are kept no longer in its place."""
        gone: list[Entry] = []
        with self._lock:
            mine = self._entries.setdefault(client, deque())
            mine.appendleft(entry)
            self._entries.move_to_end(client)
            while len(mine) > self._most:
                gone.append(mine.pop())
            while len(self._entries) > self._clients:
                gone += self._entries.popitem(last=False)[1]
        return gone

    def of(self, client: str) -> list[Entry]:
        """A client's entries, newest first."""
        with self._lock:
            return list(self._entries.get(client, ()))

    def forget(self, client: str) -> list[Entry]:
        """Drop a client's entries, and return them."""
        with self._lock:
            return list(self._entries.pop(client, ()))


def caption(entry: Entry) -> str:
    """One line about an entry, for below its picture."""
    request = entry.record.get("request", {})
    words = str(request.get("instruction", ""))
    short = words if len(words) <= 40 else words[:39].rstrip() + "…"
    return f"{short} · seed {entry.seed}"


def parameters(entry: Entry) -> dict[str, Any]:
    """What was in use for an entry, as a person wants to read it: the knobs first, then with what it was made."""
    record = entry.record
    request, engine = record.get("request", {}), record.get("engine", {})
    found: dict[str, Any] = {"source": entry.name, "seed": str(entry.seed)}
    found |= {name: request[name] for name in SHOWN if request.get(name) not in (None, "")}
    if engine.get("loras"):
        found["loras"] = ", ".join(f"{each['name']} at {each['scale']:g}" for each in engine["loras"])
    for name in ("device", "device_name", "dtype"):
        if engine.get(name):
            found[name.replace("_", " ")] = engine[name]
    attention = (engine.get("attention") or {}).get("path")
    if attention:
        found["attention"] = attention
    refinement = record.get("refinement")
    if refinement:
        found["instruction as written"] = refinement.get("given", "")
        found["worded anew"] = "yes" if refinement.get("refined") else f"no: {refinement.get('reason', '')}"
    if record.get("notices"):
        found["notices"] = record["notices"]
    found["seconds"] = record.get("seconds")
    return found


def loras_of(entry: Entry, known: Mapping[str, str]) -> list[tuple[str, float]]:
    """The LoRAs of an entry that can still be picked: names and scales.

    Args:
        entry: that was made with them.
        known: paths by name.
    """
    names = {Path(path).resolve(): name for name, path in known.items()}
    used = entry.record.get("engine", {}).get("loras") or ()
    found = [(names.get(Path(str(each.get("path", ""))).resolve()), float(each.get("scale", 1))) for each in used]
    return [(name, scale) for name, scale in found if name is not None]

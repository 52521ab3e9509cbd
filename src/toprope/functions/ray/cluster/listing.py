"""Living instances of all sessions of a Ray cluster, for `toprope status`.

Asks the manager of each session (`ray.manager.Manager.holders`), without becoming a part of one. Where none answers,
the rows of Ray's private `state.actors` are read; their names are Ray's (2.60). Tests:
tests/functions/test_functions_ray.py (slow).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from toprope.functions.lifecycle import State
from toprope.functions.ray.attach import NAMESPACE, SESSION
from toprope.functions.ray.manager import living_names
from toprope.functions.scheduling.holders import Holder

__all__ = ["listed"]

_ANSWER = 5.0
"""Time limit of a session manager's answer, in seconds; without an answer only Ray's own data is listed."""

_STATES = {"ALIVE": State.READY, "RESTARTING": State.STARTING}


def listed(ray: Any) -> Iterator[tuple[str, Holder]]:
    """Return the living instances: their session, "" if it has ended, and their known resources.

    Args:
        ray: the module, connected.
    """
    names = living_names()
    sessions = sorted(name for name in names if name.startswith(SESSION))
    left = names - set(sessions)
    for session, holders in _answers(ray, sessions):
        for each in holders:
            if each.id in left:
                left.remove(each.id)
                yield session.removeprefix(SESSION), each
    if left:
        from ray._private import state

        for row in state.actors().values():
            if row["Name"] in left and row["State"] != "DEAD":
                left.remove(row["Name"])
                where = str(_STATES.get(row["State"], State.WAITING))
                yield "", Holder(row["Name"], row["ActorClassName"], where, row["Address"]["NodeID"], row["Pid"])


def _answers(ray: Any, sessions: list[str]) -> Iterator[tuple[str, list[Holder]]]:
    asked: dict[Any, str] = {}
    for session in sessions:
        try:
            asked[ray.get_actor(session, NAMESPACE).holders.remote()] = session
        except ValueError:
            continue  # it has just ended
    there, _ = ray.wait(list(asked), num_returns=len(asked), timeout=_ANSWER) if asked else ([], [])
    for ref in sorted(there, key=asked.__getitem__):
        try:
            yield asked[ref], ray.get(ref)
        except ray.exceptions.RayError:
            continue  # it has just ended

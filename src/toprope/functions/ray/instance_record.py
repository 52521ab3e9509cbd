"""State of one instance on Ray in a process that knows it: its handle, options and life cycle.

A record: `ray.instances` makes and changes it; groups and the scheduler read it. `local.instance` is its counterpart.
As long as a handle is held, Ray keeps the actor alive. Tests: tests/functions/test_functions_ray_manager.py, and (slow)
tests/functions/test_functions_ray.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from toprope.functions.backend import Code
from toprope.functions.lifecycle import Life
from toprope.functions.options import InvokeOptions
from toprope.functions.ray.attach import BARE
from toprope.functions.scheduling.requests import Request

__all__ = ["Record"]


@dataclass(eq=False, kw_only=True)
class Record(Life[Any]):
    """An instance as this process knows it. It starts with the request to Ray, which queues its calls.

    Attributes:
        id: names it.
        handle: Ray's; as long as it is held the instance lives. None where there never was one.
        code: its class; None where it was created elsewhere.
        options: its options.
        request: its resources.
        is_ours: whether this process created it, and ends it with the session.
        arguments: of its constructor, while it waits for its group.
        run, stream: actor methods for calls and for generators.
        bare: cached actor methods of the user's methods that are called without arguments.
    """

    id: str
    handle: Any = None
    code: Code | None = None
    options: InvokeOptions = field(default_factory=InvokeOptions)
    request: Request = field(default_factory=Request)
    is_ours: bool = False
    arguments: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
    run: Any = None
    stream: Any = None
    bare: dict[str, Any] = field(default_factory=dict)

    def hold(self, handle: Any) -> None:
        """Set its handle."""
        self.handle = handle
        self.run = handle.run
        self.stream = handle.stream.options(num_returns="streaming")
        self.bare = {}

    def release(self) -> None:
        """Release its handle: Ray ends it once its calls have ended."""
        self.handle = self.run = self.stream = None
        self.bare = {}

    def without_arguments(self, method: str) -> Any:
        """Return the actor method of a call without arguments; None if it must be called through `run`."""
        if method not in self.bare:
            self.bare[method] = getattr(self.handle, BARE + method, None)
        return self.bare[method]

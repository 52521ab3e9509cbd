"""Groups of instances of the yr API (`yr.Group`): members start all or none, and end together.

For users; a thin layer over the backend's `InstanceGroups`, whose rules are `lifecycle.GroupLife`'s. The names are
openYuanrong's; `suspend` and `resume` exist for them only, and refuse. Tests: tests/functions/test_functions_fcc.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from toprope.functions import context
from toprope.functions.lifecycle import GRACE
from toprope.functions.objects import ObjectRef
from toprope.functions.options import GroupOptions

__all__ = ["Group"]


@dataclass
class Group:
    """A group of instances: those created with `InvokeOptions.group_name` of this name, until it is started.

    Attributes:
        group_name: its name.
        group_opts: how its members live together.
    """

    group_name: str = ""
    group_opts: GroupOptions = field(default_factory=GroupOptions)
    _ready: ObjectRef | None = field(default=None, init=False, repr=False, compare=False)

    def invoke(self) -> None:
        """Start all members, or none. Returns at once; errors are raised by `wait` and by results of the members.

        Raises:
            ValueError: options that cannot be.
            YRequestError: nobody has joined the group, or it has been started before (1010).
        """
        options = self.group_opts or GroupOptions()
        self._ready = context.backend().groups.start(self.group_name, options)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until all members run.

        Args:
            timeout: seconds; None or -1 for no limit.

        Raises:
            YRequestError: the group failed to start (1010).
            YRTimeoutError: the time is over.
            YRRuntimeError: there is no such group.
        """
        backend = context.backend()
        ready = self._ready or backend.groups.waited(self.group_name)
        backend.get([ready], -1 if timeout is None else timeout, False)

    def terminate(self) -> None:
        """End all members and wait until they are gone, at most for their grace period. No-op if not started."""
        backend = context.backend()
        over = backend.groups.terminate(self.group_name)
        if over is not None:
            backend.wait([over], 1, GRACE)

    def suspend(self) -> None:
        """Not part of toprope.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            "Group.suspend is not part of toprope: suspended members would keep their cards' memory"
        )

    def resume(self) -> None:
        """Not part of toprope.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("Group.resume is not part of toprope, as Group.suspend is not")

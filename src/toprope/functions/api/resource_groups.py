"""Resource groups of the yr API: bundles of resources, granted all together, for instances to use.

For users; checks the arguments (`functions.scheduling.bundles`) and calls the backend's `ResourceGroups`. Names,
defaults, codes and messages are openYuanrong's; the reason in a timeout's message is ours. Tests:
tests/functions/test_functions_resource_groups.py.
"""

from __future__ import annotations

import uuid
from typing import Any

from toprope.functions import context
from toprope.functions.exceptions import CODES, YRRuntimeError, YRTimeoutError
from toprope.functions.objects import ObjectRef
from toprope.functions.scheduling.bundles import check_name, check_strategy, parse_bundles

__all__ = ["ResourceGroup", "create_resource_group", "remove_resource_group", "resource_group_table"]


class ResourceGroup:
    """A resource group. Instances use it by `InvokeOptions.resource_group_options`.

    Attributes:
        resource_group_name: its name.
        bundle_specs: the bundles as requested.
        bundle_count: number of bundles.
    """

    def __init__(self, name: str, bundles: list[dict[str, float]], ready: ObjectRef) -> None:
        self.resource_group_name = name
        self.bundle_specs = bundles
        self._ready = ready

    @property
    def bundle_count(self) -> int:
        """Number of bundles."""
        return len(self.bundle_specs)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the group has all its bundles.

        Args:
            timeout: seconds; None or -1 for no limit.

        Raises:
            ValueError: the timeout is below -1.
            YRTimeoutError: the time limit was reached; the message names the missing resources.
            YRRuntimeError: the group was removed.
        """
        if timeout is not None and (not isinstance(timeout, int | float) or isinstance(timeout, bool)):
            raise TypeError(f"invalid timeout type, actual: {type(timeout)}, expect: number")
        if timeout is not None and timeout < 0 and timeout != -1:
            raise ValueError(
                f"invalid timeout, actual: {timeout}: it should be greater than or equal to -1 (no timeout), or None"
            )
        backend = context.backend()
        try:
            backend.get([self._ready], -1 if timeout is None else timeout, False)
        except YRTimeoutError:
            told = backend.resource_groups.table(self.resource_group_name)[self.resource_group_name]
            raise YRTimeoutError(
                f"resource group {self.resource_group_name} is not there within {timeout} s: {told.get('reason', '')}",
                1002,
                10,
            ) from None
        if not backend.resource_groups.is_there(self.resource_group_name):
            raise YRRuntimeError(f"resource group {self.resource_group_name} was removed", CODES["instance exited"])

    def __repr__(self) -> str:
        return f"<resource group {self.resource_group_name} of {self.bundle_count} bundles>"

    def __reduce__(self) -> tuple[Any, ...]:
        return ResourceGroup, (self.resource_group_name, self.bundle_specs, self._ready)


def create_resource_group(
    bundles: list[dict[str, float]], name: str | None = None, strategy: str | None = "PACK"
) -> ResourceGroup:
    """Request bundles of resources. Returns at once; `ResourceGroup.wait` waits until all are granted.

    Args:
        bundles: of each its resources: "CPU" in millicores (300 where it is absent or 0), "Memory" in MB (128), keys
            of cards as in `InvokeOptions.custom_resources`, and named resources.
        name: of the group; None for one that is made up.
        strategy: how the bundles lie on nodes: None or "PACK" on as few as possible, "SPREAD" on as many as possible,
            "STRICT_PACK" all on one, "STRICT_SPREAD" each on its own.

    Raises:
        TypeError, ValueError: the arguments cannot be.
        YRequestError: a name or an amount that cannot be, or there is a group of that name (1001); a key that cannot
            be (1006).
    """
    parse_bundles(bundles)
    strategy = check_strategy(strategy)
    if name is None:
        name = f"resource-group-{uuid.uuid4().hex[:12]}"
    check_name(name)
    specs = [dict(each) for each in bundles]
    return ResourceGroup(name, specs, context.backend().resource_groups.create(name, specs, strategy))


def remove_resource_group(resource_group: str | ResourceGroup) -> None:
    """Release the resources of a group. Instances and functions that use it end.

    Args:
        resource_group: its name, or what `create_resource_group` returned.

    Raises:
        TypeError: something else.
        YRRuntimeError: there is no such group.
    """
    if isinstance(resource_group, ResourceGroup):
        resource_group = resource_group.resource_group_name
    if not isinstance(resource_group, str):
        raise TypeError(f"invalid resource group type, actual: {type(resource_group)}, expect: str or ResourceGroup")
    check_name(resource_group)
    context.backend().resource_groups.remove(resource_group)


def resource_group_table(resource_group_id: str | None = None) -> dict[str, Any]:
    """Return state, strategy and bundle locations of each resource group by name, or of one.

    Raises:
        YRRuntimeError: there is no such group.
    """
    return context.backend().resource_groups.table(resource_group_id or None)

"""Node and namespace in which the calling function runs: `yr.get_node_id` and its like, for users.

The names are openYuanrong's (its `apis.py`); the values are the backend's `this_node`. Tests:
tests/functions/test_functions_resource_groups.py.
"""

from __future__ import annotations

from toprope.functions import context

__all__ = ["get_namespace", "get_node_id", "get_node_ip_address"]


def get_node_id() -> str:
    """The name of this node, as `yr.resources` and the label NODE_ID have it."""
    return context.backend().this_node()["id"]


def get_node_ip_address() -> str:
    """The address of this node, as the label HOST_IP has it."""
    return context.backend().this_node()["ip"]


def get_namespace() -> str:
    """The namespace of named instances that name none."""
    return context.backend().this_node()["namespace"]

"""Where this function runs, for the yr API."""

from __future__ import annotations

from toprope.functions import current

__all__ = ["get_namespace", "get_node_id", "get_node_ip_address"]


def get_node_id() -> str:
    """The name of this node, as `yr.resources` and the label NODE_ID have it."""
    return _told()["id"]


def get_node_ip_address() -> str:
    """The address of this node, as the label HOST_IP has it."""
    return _told()["ip"]


def get_namespace() -> str:
    """The namespace of named instances that name none."""
    return _told()["namespace"]


def _told() -> dict[str, str]:
    told: dict[str, str] = current.backend().request("node")
    return told

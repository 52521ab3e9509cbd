"""What the log says of requests that will not go as their author may think."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from toprope.functions.resources import Request

if TYPE_CHECKING:
    from toprope.functions.local.services import Asker, Services
    from toprope.functions.options import InvokeOptions

__all__ = ["detached", "never"]

_log = logging.getLogger("toprope")


def detached(id: str, options: InvokeOptions) -> None:
    """An instance is to outlive the program: in processes of this machine none does."""
    if options.custom_extensions.get("lifecycle") == "detached":
        _log.warning("instance %s is detached, and runs in a process of this machine: it ends with this program", id)


def never(what: str, services: Services, asker: Asker, request: Request) -> None:
    """Something waits for resources that it can never get here. It waits all the same: more may come."""
    shortage = services.shortage_for(asker, request)
    if not shortage.ever:
        _log.warning("%s asks for what is not here: %s", what, shortage.text)

"""HTTP services of graphs: `Service(graph).app` is an ASGI application, `toprope serve` runs it."""

from toprope.flow.service.app import Limits, Service

__all__ = ["Limits", "Service"]

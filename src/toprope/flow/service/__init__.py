"""HTTP services of graphs: `Service(graph).app` is an ASGI application, `toprope serve` runs it.

For users. It uses graphs by the public calls of `FlowGraph`; docs/serve.md says what clients see. Tests:
tests/flow/test_serve_app.py, tests/flow/test_serve_http.py.
"""

from toprope.flow.service.app import Limits, Service

__all__ = ["Limits", "Service"]

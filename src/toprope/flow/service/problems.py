"""Errors of a service as clients see them: problem details for HTTP (RFC 9457).

`bodies` and `app` raise a `Problem`; `app` sends it. The RFC fixes type, title, status and detail; `do`, `field`,
`expected` and `got` are toprope's own, promised in docs/serve.md. `openapi` lists the status codes. Tests:
tests/flow/test_serve_app.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

__all__ = ["MEDIA_TYPE", "Problem"]

MEDIA_TYPE = "application/problem+json"


class Problem(Exception):  # noqa: N818 - the RFC's name
    """A request that gets no result.

    Args:
        status: HTTP status.
        detail: one sentence that says what happened.
        do: what the client can do; empty for nothing.
        headers: of the response.
        facts: further members, such as `field`, `expected` and `got`.
    """

    def __init__(
        self, status: int, detail: str, do: str = "", headers: Mapping[str, str] | None = None, **facts: Any
    ) -> None:
        super().__init__(status, detail)
        self.status = status
        self.detail = detail
        self.headers = dict(headers or {})
        self.members: dict[str, Any] = {
            "type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail,
            **{name: value for name, value in facts.items() if value is not None},
        }  # fmt: skip
        if do:
            self.members["do"] = do

    def body(self) -> bytes:
        """The problem as JSON."""
        return json.dumps(self.members).encode()

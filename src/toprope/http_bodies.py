"""Bodies of HTTP requests and responses for the servers, as plain ASGI: limits in bytes, and whole answers.

Used by `toprope serve` (`flow.service`) and the page of `toprope ui` (`images.web`). Names of messages and their keys
are ASGI's; the limits of what is read after an answer (64 MiB, 10 s) are free. Tests: tests/base/test_http_bodies.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

__all__ = [
    "Message",
    "RestReader",
    "bounded",
    "declared_length",
    "read",
    "send_start",
    "send_whole",
]

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]

_DIGITS = 18
"""Most digits of a length; more would not be a number of bytes that anyone can send."""

_REST_BYTES = 64 * 2**20
_REST_SECONDS = 10.0
"""Most of a body that is read after its answer, in bytes and in seconds."""


class RestReader:
    """An ASGI application before another one, which reads what the other leaves unread of a request's body.

    A server that answers early and closes the connection with bytes unread makes the system reset it, and the client
    may lose the answer ("connection reset" where it should read "too large"). So the answer is sent first, and then
    the rest of the body is read and dropped, 64 MiB and 10 s at most. A client that waits for "100 Continue" has sent
    nothing: it is answered at once.
    """

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Hand a request on."""
        names = {name.lower() for name, _ in scope["headers"]} if scope["type"] == "http" else set()
        if not names & {b"content-length", b"transfer-encoding"}:
            await self._app(scope, receive, send)
            return
        unread, waits = True, b"expect" in names

        async def receive_part() -> Message:
            nonlocal unread, waits
            message = await receive()
            unread, waits = message.get("more_body", False), False
            return message

        async def send_then_read(message: Message) -> None:
            is_last = message["type"] == "http.response.body" and not message.get("more_body", False)
            if is_last and unread and not waits:
                await send({**message, "more_body": True})
                await _drop(receive_part)
                message = {"type": "http.response.body", "body": b""}
            await send(message)

        await self._app(scope, receive_part, send_then_read)


async def _drop(receive: Receive) -> None:
    size = 0
    try:
        async with asyncio.timeout(_REST_SECONDS):
            while size < _REST_BYTES:
                message = await receive()
                size += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return
    except TimeoutError:
        pass


def declared_length(headers: Mapping[str, str]) -> int | None:
    """Read Content-Length.

    Args:
        headers: by lower-case name.

    Returns:
        Bytes; None if the body comes in chunks, or if the header is missing or no number.
    """
    text = headers.get("content-length", "")
    if "transfer-encoding" in headers or not (text.isascii() and text.isdigit()):
        return None
    return int(text) if len(text) <= _DIGITS else 10**_DIGITS


def bounded(receive: Receive, limit: int, too_large: Callable[[int], Exception]) -> Receive:
    """Limit the bytes of a body, whatever its header declares.

    Args:
        receive: gives the messages of the request.
        limit: bytes.
        too_large: makes the exception that a larger body raises in `receive`, from the limit.
    """
    size = 0

    async def receive_some() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > limit:
            raise too_large(limit)
        return message

    return receive_some


async def read(receive: Receive, gone: Callable[[], Exception]) -> bytes:
    """Read a whole body.

    Args:
        receive: gives the messages of the request, see `bounded`.
        gone: makes the exception that is raised when the client closes its connection before the end.
    """
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise gone()
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


async def send_start(send: Send, status: int, headers: Mapping[str, str]) -> None:
    """Send status and headers; the body follows."""
    raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})


async def send_whole(
    send: Send, status: int, media_type: str, body: bytes, headers: Mapping[str, str] | None = None
) -> None:
    """Send an answer whose body is complete."""
    named = {"Content-Type": media_type, "Content-Length": str(len(body)), **(headers or {})}
    await send_start(send, status, named)
    await send({"type": "http.response.body", "body": body})

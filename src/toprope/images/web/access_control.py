"""Access control of the server: requests of its own pages and of programs, by its own names, within limits.

A page of another origin can send forms and files to any address that the browser reaches, and a name that resolves to
127.0.0.1 makes such a page "the same origin" (DNS rebinding). So the names in Host and Origin are compared with those
that the server goes by. No framework here: plain ASGI.

`web.serving` puts it in front of everything that it serves. The path of uploads is Gradio's, the headers are those of
browsers. A new path that takes files needs its limit here; nothing may be let through that is refused now. Tests:
tests/images/test_images_access_control.py.
"""

from __future__ import annotations

import ipaddress
import json
import threading
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from urllib.parse import urlsplit

from toprope.http_bodies import Application, Message, Receive, Send, declared_length, send_whole

__all__ = ["API", "AccessControl", "Uploads", "host_allowed", "origin_allowed"]

API = "/api/"
"""How paths of the named API begin; errors there are JSON, elsewhere a line of text."""

UPLOAD = "/gradio_api/upload"
SAFE = ("GET", "HEAD", "OPTIONS")

FORM = 2**20
"""Bytes of a request without files at most; one with files may have as many more."""

SPARE = 600.0
"""Seconds that an uploaded file is kept at least, also where others need its room."""


def host_allowed(host: str, names: Collection[str] = ()) -> bool:
    """Tell whether a Host header names this server.

    An address is always one: rebinding needs a name. Names are localhost and those given.

    Args:
        host: the header, with a port or without.
        names: further ones, in lower case.
    """
    name = _name(host)
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name == "localhost" or name.endswith(".localhost") or name in names
    return True


def origin_allowed(origin: str, host: str, names: Collection[str] = ()) -> bool:
    """Tell whether a page of an origin may send to this server: only its own pages and those of the names given.

    Args:
        origin: the header; sandboxes and files send "null".
        host: the header Host of the same request.
        names: further ones, in lower case, of a proxy before this server.
    """
    try:
        found = urlsplit(origin)
        port = found.port
    except ValueError:
        return False
    if found.scheme not in ("http", "https") or not found.hostname:
        return False
    usual = {"http": 80, "https": 443}[found.scheme]
    own = _name(host), _port(host) or usual
    return (found.hostname, port or usual) == own or found.hostname in names


def _name(host: str) -> str:
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].rstrip(".") if host.count(":") <= 1 else host


def _port(host: str) -> int | None:
    _, colon, port = host.rpartition(":")
    return int(port) if colon and port.isascii() and port.isdigit() else None


class Uploads:
    """Files that pages have uploaded, bounded in number; the oldest that no edit uses go first.

    Args:
        paths: of all files that were uploaded; those that are gone are passed over.
        most: number of files.
        size: bytes of all of them together.
        in_use: paths that edits wait for.
        spare: seconds that a file is kept at least.
    """

    def __init__(
        self,
        paths: Callable[[], Iterable[str]],
        *,
        most: int,
        size: int,
        in_use: Callable[[], Collection[str]],
        spare: float = SPARE,
    ) -> None:
        self._paths, self._most, self._size, self._in_use, self._spare = paths, most, size, in_use, spare
        self._lock = threading.Lock()

    def make_room(self) -> bool:
        """Remove old files until there is room for one more; whether there is."""
        with self._lock:
            there = []
            for path in map(Path, list(self._paths())):
                try:
                    found = path.stat()
                except OSError:
                    continue
                there.append((found.st_mtime, found.st_size, path))
            there.sort(key=lambda each: each[0])
            used, old = set(self._in_use()), time.time() - self._spare
            while len(there) >= self._most or sum(size for _, size, _ in there) >= self._size:
                gone = next((each for each in there if each[0] < old and str(each[2]) not in used), None)
                if gone is None:
                    return False
                gone[2].unlink(missing_ok=True)
                there.remove(gone)
            return True


class AccessControl:
    """An ASGI application before another one, which sees only requests that are allowed.

    Args:
        app: the other one.
        names: that the server goes by, in addition to addresses and localhost.
        uploads: of pages.
        one: bytes of one file at most.
        files: in one upload at most.
        edits: requests to the named API that are read at the same time at most.
    """

    def __init__(
        self, app: Application, *, names: Collection[str], uploads: Uploads, one: int, files: int, edits: int
    ) -> None:
        self._app, self._names, self._uploads = app, frozenset(name.lower() for name in names), uploads
        self._one, self._files, self._edits = one, files, edits
        self._reading = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request, or hand it on."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        refused = self._refused(scope)
        if refused is not None:
            await _answer(scope, send, *refused)
        elif scope["type"] == "http" and scope["path"].endswith(UPLOAD) and scope["method"] == "POST":
            await self._upload(scope, receive, send)
        elif scope["type"] == "http" and scope["path"].startswith(API) and scope["method"] == "POST":
            self._reading += 1
            try:
                if self._reading > self._edits:
                    await _answer(scope, send, 503, "the queue is full.", "try again in a while")
                else:
                    await self._app(scope, receive, send)
            finally:
                self._reading -= 1
        else:
            await self._app(scope, receive, send)

    def _refused(self, scope: Message) -> tuple[int, str, str] | None:
        """Status, problem and advice for a request that is refused; None if it is allowed."""
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get("host", "")
        if not host_allowed(host, self._names):
            return 403, f"this server does not go by the name {host[:80]!r}.", "use its address, or --allow-host NAME"
        unsafe = scope["type"] == "websocket" or scope["method"] not in SAFE
        origin = headers.get("origin")
        if unsafe and (
            not origin_allowed(origin, host, self._names)
            if origin is not None
            else headers.get("sec-fetch-site") == "cross-site"
        ):
            return 403, f"pages of {(origin or 'another site')[:80]!r} may not use this server.", "use its own page"
        if scope["type"] == "websocket" or not unsafe:
            return None
        return self._too_long(scope["path"], headers)

    def _too_long(self, path: str, headers: dict[str, str]) -> tuple[int, str, str] | None:
        """Status, problem and advice for a body that is too long or of unknown length; None if it is neither."""
        length = declared_length(headers)
        if length is None and ("content-length" in headers or "transfer-encoding" in headers):
            return 411, "the request does not say how long it is.", "send Content-Length"
        files = self._files if path.endswith(UPLOAD) else 2 if path.startswith(API) else 0
        most = files * self._one + FORM
        if (length or 0) > most:
            return 413, f"the request has {length} bytes, and the most is {most}.", "send less, or use toprope edit"
        return None

    async def _upload(self, scope: Message, receive: Receive, send: Send) -> None:
        """Hand on an upload within the limits, and answer others with the reason."""
        if not self._uploads.make_room():
            await _answer(
                scope, send, 429, "too many pictures were uploaded.", "try again in some minutes, when old ones go"
            )
            return
        replaced = False

        async def sent(message: Message) -> None:
            nonlocal replaced
            if message["type"] == "http.response.start" and message["status"] == 413:
                replaced = True
                do = "make it smaller, or start the server with a larger --max-upload"
                await _answer(scope, send, 413, f"a file has more than {self._one / 2**20:g} MiB.", do)
            elif not replaced:
                await send(message)

        await self._app(scope, receive, sent)


async def _answer(scope: Message, send: Send, status: int, what: str, do: str) -> None:
    """Format an error like all others: what happened, and what to do."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": what})
        return
    as_json = scope["path"].startswith(API)
    body = json.dumps({"error": {"what": what, "looked_at": "", "do": do}}) if as_json else f"{what} do: {do}\n"
    kind = "application/json" if as_json else "text/plain; charset=utf-8"
    await send_whole(send, status, kind, body.encode())

"""The server of a service: uvicorn, with an end in which accepted requests are answered.

`toprope serve` calls it; a program with its own server mounts `Service.app` instead. `handle_exit` and `on_tick`
override uvicorn's methods of these names. The end is promised in docs/serve.md; the times of connections are free.
Tests: tests/flow/test_serve_http.py.
"""

from __future__ import annotations

import socket
import sys
import time
from typing import Any

import uvicorn

from toprope.errors import UsageError
from toprope.flow.service.app import Service

__all__ = ["bound", "serve"]


def bound(host: str, port: int) -> socket.socket:
    """A socket on an address; nobody can connect before `serve` listens on it.

    Raises:
        UsageError: the address cannot be listened on.
    """
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio switches Nagle's algorithm off where the protocol is named: else answers wait 40 ms for the client
    sock = socket.socket(kind, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise UsageError(
            f"{host}:{port} cannot be listened on.",
            looked_at=str(error),
            do="name another --port, or 0 for one that is free" if port else "name another --host",
        ) from error
    return sock


def serve(service: Service, sock: socket.socket, *, shutdown_seconds: float = 30.0) -> bool:
    """Answer requests until SIGTERM or Ctrl-C, or until the graph cannot go on.

    The first signal lets accepted requests be answered while new ones get 503; a second one ends at once.

    Args:
        service: answers.
        sock: of `bound`.
        shutdown_seconds: how long accepted requests may still take after the first signal.

    Returns:
        Whether it ended because it was asked to, with all requests answered.
    """
    config = uvicorn.Config(
        service.app, log_level="warning", access_log=False, lifespan="off", server_header=False, backlog=2048,
        timeout_keep_alive=30, timeout_graceful_shutdown=5,
    )  # fmt: skip
    server = _Server(config, service, shutdown_seconds)
    server.run([sock])
    return server.is_clean


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, service: Service, shutdown_seconds: float) -> None:
        super().__init__(config)
        self._service = service
        self._seconds = shutdown_seconds
        self._until: float | None = None
        self.is_clean = True

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Stop accepting at the first signal, end at the second."""
        if self._until is None:
            self._until = time.monotonic() + self._seconds
            self._service.drain()
            ongoing = self._service.figures.ongoing
            if ongoing:
                _say(f"stopping: {ongoing} ongoing requests are answered first; once more ends at once")
        else:
            self.is_clean = self._service.is_idle
            self.should_exit = self.force_exit = True

    async def on_tick(self, counter: int) -> bool:
        """Look whether it is time to end."""
        if self._until is not None and self._service.is_idle:
            self.should_exit = True
        elif self._until is not None and time.monotonic() > self._until:
            _say(f"{self._service.figures.ongoing} requests were not answered within {self._seconds:g} s")
            self.is_clean, self.should_exit, self.force_exit = False, True, True
        elif self._service.error is not None and self._service.is_idle:
            self.is_clean, self.should_exit = False, True
        return await super().on_tick(counter)


def _say(text: str) -> None:
    sys.stderr.write(f"toprope: {text}\n")
    sys.stderr.flush()

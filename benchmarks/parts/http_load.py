"""A client that keeps a number of requests under way for some seconds; prints requests per second and times as JSON.

    python http_load.py HOST PORT PATH CONNECTIONS SECONDS < body

A process of its own, without a library of HTTP: the client shall not be what is measured.

Started by `parts.services` for benchmarks/serve.py, which reads the keys of its JSON. It knows as much of HTTP/1.1 as
the three servers answer with: a length, or chunks.

Tests: tests/flow/test_serve_benchmark.py.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time


class Connection(asyncio.Protocol):
    """Sends a request, and the next one when the answer is there."""

    def __init__(self, request: bytes, until: float, times: list[float], errors: list[str]) -> None:
        self._request, self._until, self._times, self._errors = request, until, times, errors
        self._data = b""
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._send()

    def _send(self) -> None:
        self._data, self._began = b"", time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, body = self._data.partition(b"\r\n\r\n")
        if not found:
            return
        lines = head.lower().split(b"\r\n")
        length = next((int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:")), None)
        if (length is None and not body.endswith(b"0\r\n\r\n")) or (length is not None and len(body) < length):
            return
        now = time.perf_counter()
        if b" 200 " not in lines[0]:
            self._errors.append(self._data[:300].decode("latin-1"))
        self._times.append(now - self._began)
        if now < self._until:
            self._send()
        else:
            self._transport.close()
            self.ended.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self._errors.append(f"the connection has ended: {error}")
            self.ended.set_result(None)


def _at(times: list[float], share: float) -> float | None:
    return times[int(len(times) * share)] if times else None


async def load(host: str, port: int, path: str, connections: int, seconds: float, body: bytes) -> dict[str, object]:
    """Requests per second, with the median and the 99th percentile of the times in seconds; None without an answer."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    request = head.encode() + body
    times: list[float] = []
    errors: list[str] = []
    loop, began = asyncio.get_running_loop(), time.perf_counter()
    made = [
        await loop.create_connection(lambda: Connection(request, began + seconds, times, errors), host, port)
        for _ in range(connections)
    ]
    await asyncio.gather(*(protocol.ended for _, protocol in made))
    taken = time.perf_counter() - began
    times.sort()
    return {
        "rps": len(times) / taken, "p50": _at(times, 0.5), "p99": _at(times, 0.99),
        "count": len(times), "errors": errors[:3],
    }  # fmt: skip


if __name__ == "__main__":
    host, port, path, connections, seconds = sys.argv[1:]
    found = asyncio.run(load(host, int(port), path, int(connections), float(seconds), sys.stdin.buffer.read()))
    print(json.dumps(found))

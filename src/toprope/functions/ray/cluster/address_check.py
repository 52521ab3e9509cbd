"""Check of a Ray address within seconds: Ray itself retries for minutes.

`cluster.startup` calls it before it connects. It makes one call of gRPC and tells by the answer whether a Ray, a Ray
client's server or something else is there. The bytes are those of HTTP/2 (RFC 9113), HPACK (RFC 7541) and gRPC, without
a library, the two calls Ray's (2.60); limits of time and texts are free. What may be a Ray is left to Ray: only a clear
answer refuses. Held by tests/functions/test_functions_addresses.py.
"""

from __future__ import annotations

import os
import socket
import time
from enum import StrEnum

from toprope.errors import EnvironmentProblem

__all__ = ["Answer", "asked", "check_ray", "parted_address"]

CONNECT = 1.25
"""Time limit of the connection, in seconds."""

SPEAK = 1.25
"""Time limit of the server's answer, in seconds."""

# HTTP/2 (RFC 9113), which gRPC speaks. A client begins with a fixed text and a SETTINGS frame. A frame is its length (3
# bytes), its type, flags, the number of its stream (4), and the payload.
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _GO_AWAY = 0, 1, 3, 4, 7
_ACK, _END, _HEADERS_END, _PADDED, _PRIORITY = 1, 1, 4, 8, 32
_HEAD = 9

# Headers as HPACK (RFC 7541) writes them: as they are, or by its Huffman code, as Go's servers do.
_GRPC = (b"application/grpc", bytes.fromhex("1d75d0620d263d4c4d6564"))
_STATUS = (b"grpc-status", bytes.fromhex("9acac8b21234da8f"))
_NO_SUCH_METHOD = (b"\x0212", bytes.fromhex("8208bf"))
"""The status UNIMPLEMENTED, 12."""

_GCS = "/ray.rpc.NodeInfoGcsService/GetClusterId"
_CLIENT_SERVER = "/ray.rpc.RayletDriver/ClusterInfo"
"""Calls that only a Ray answers: at `host:port`, and at `ray://host:port`. Neither changes anything."""


class Answer(StrEnum):
    """Kinds of servers that may answer at an address."""

    RAY = "a Ray"
    """Or one that does not say in time that it is none."""
    OTHER_GRPC = "it speaks gRPC, and does not know Ray's calls"
    OTHER = "it does not speak gRPC"


def parted_address(address: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`, `ray:HOST:PORT`, `ray://HOST:PORT` or `[IPv6]:PORT`."""
    host, _, port = address.removeprefix("ray://").removeprefix("ray:").rpartition(":")
    return host.strip("[]"), int(port)


def check_ray(address: str) -> None:
    """Refuse an address at which no Ray answers.

    Args:
        address: as for `parted_address`.

    Raises:
        EnvironmentProblem: nothing listens there, or what listens there is no Ray.
    """
    host, port = parted_address(address)
    do = (
        "to run on this machine, leave server_address and TOPROPE_CLUSTER empty (an address of an openYuanrong cluster "
        "means nothing here); to run on Ray, start one with toprope start --master --ray and name the address that "
        "it prints"
    )
    try:
        with socket.create_connection((host, port), CONNECT) as connection:
            if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
                return  # the request below is not encrypted
            answer = asked(connection, f"{host}:{port}", _CLIENT_SERVER if address.startswith("ray://") else _GCS)
    except OSError as error:
        why = "no answer within seconds" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise EnvironmentProblem(
            f"server_address {address} names a Ray, but nothing listens at {host}, port {port} ({why}).", do=do
        ) from None
    if answer is not Answer.RAY:
        raise EnvironmentProblem(
            f"server_address {address} names a Ray, but what listens at {host}, port {port} is no Ray: {answer}.", do=do
        )


def asked(connection: socket.socket, authority: str, method: str) -> Answer:
    """Kind of a server, by its answer to a call of gRPC without arguments.

    Args:
        connection: to the server, new.
        authority: its host and port.
        method: path of the call.
    """
    until = time.monotonic() + SPEAK
    spoke = False
    try:
        connection.sendall(_HELLO + _frame(_SETTINGS, 0, 0, b""))
        while True:
            kind, flags, stream, payload = _read(connection, until)
            if not spoke and kind != _SETTINGS:
                return Answer.OTHER
            if kind == _SETTINGS and not flags & _ACK:
                connection.sendall(_frame(_SETTINGS, _ACK, 0, b""))
                if not spoke:
                    connection.sendall(_call(authority, method))
                spoke = True
            elif kind == _GO_AWAY or (kind == _RESET and stream == 1):
                return Answer.OTHER
            elif kind == _HEADERS and stream == 1:
                return _kind_by_headers(_header_block(flags, payload))
    except TimeoutError:
        # it has begun as a server of gRPC does: a Ray may be as busy as that, and Ray has limits of its own
        return Answer.RAY if spoke else Answer.OTHER
    except OSError:
        return Answer.OTHER


def _kind_by_headers(block: bytes) -> Answer:
    """Kind of the server whose answer begins with these headers.

    A call that is known and refused has another status, or none yet.
    """
    if not any(each in block for each in _GRPC):
        return Answer.OTHER  # such as a web server's page of an error
    for name in _STATUS:
        _, found, rest = block.partition(name)
        if found and rest.startswith(_NO_SUCH_METHOD):
            return Answer.OTHER_GRPC
    return Answer.RAY


def _call(authority: str, method: str) -> bytes:
    headers = {
        ":method": "POST", ":scheme": "http", ":path": method, ":authority": authority, "te": "trailers",
        "content-type": "application/grpc",
    }  # fmt: skip
    block = b"".join(b"\0" + _text(name) + _text(value) for name, value in headers.items())  # literal, not indexed
    message = bytes(5)  # of gRPC: not compressed, no bytes
    return _frame(_HEADERS, _HEADERS_END, 1, block) + _frame(_DATA, _END, 1, message)


def _text(value: str) -> bytes:
    """A text of HPACK, without its Huffman code."""
    raw = value.encode()
    length, first = len(raw), b""
    if length >= 127:  # the rest of a length follows, 7 bits a byte
        length, first = length - 127, b"\x7f"
        while length >= 128:
            first += bytes([length % 128 + 128])
            length //= 128
    return first + bytes([length]) + raw


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _read(connection: socket.socket, until: float) -> tuple[int, int, int, bytes]:
    head = _exactly(connection, _HEAD, until)
    size = int.from_bytes(head[:3], "big")
    if size > 2**14:  # more than a client allows that has said nothing of it, and what other protocols look like
        raise ConnectionError("not a frame of HTTP/2")
    return head[3], head[4], int.from_bytes(head[5:], "big") % 2**31, _exactly(connection, size, until)


def _exactly(connection: socket.socket, size: int, until: float) -> bytes:
    found = b""
    while len(found) < size:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connection.settimeout(left)
        more = connection.recv(size - len(found))
        if not more:
            raise ConnectionError("the other side has closed")
        found += more
    return found


def _header_block(flags: int, payload: bytes) -> bytes:
    """The headers of a HEADERS frame."""
    if flags & _PADDED:
        payload = payload[1 : len(payload) - payload[0]] if payload else b""
    return payload[5:] if flags & _PRIORITY else payload

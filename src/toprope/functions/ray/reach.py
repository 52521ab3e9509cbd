"""Check of an address of Ray within seconds: Ray itself goes on trying for minutes."""

from __future__ import annotations

import socket
import time

from toprope.errors import EnvironmentProblem

__all__ = ["check_ray", "parted_address"]

PATIENCE = 1.25
"""Seconds for the connection, and as many for what listens there to speak."""

# What a client of HTTP/2 begins with (RFC 9113, 3.4): a fixed text and an empty SETTINGS frame. gRPC, which Ray speaks,
# is HTTP/2, and its servers begin with SETTINGS too (frame type 4).
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
_SETTINGS = 4


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
        with socket.create_connection((host, port), PATIENCE) as connection:
            speaks = _speaks_http2(connection)
    except OSError as error:
        why = "no answer within seconds" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise EnvironmentProblem(
            f"server_address {address} names a Ray, and nothing listens at {host}, port {port} ({why}).", do=do
        ) from None
    if not speaks:
        raise EnvironmentProblem(
            f"server_address {address} names a Ray, and what listens at {host}, port {port} is no Ray: it does not "
            "speak gRPC.",
            do=do,
        )


def _speaks_http2(connection: socket.socket) -> bool:
    """True if the other side begins as a server of HTTP/2 does."""
    until = time.monotonic() + PATIENCE
    found = b""
    try:
        connection.sendall(_HELLO)
        while len(found) < 4:
            connection.settimeout(max(0.001, until - time.monotonic()))
            more = connection.recv(64)
            if not more:
                return False
            found += more
    except OSError:
        return False
    return found[3] == _SETTINGS

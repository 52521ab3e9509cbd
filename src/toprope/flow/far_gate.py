"""The door of a process to those on other machines: TCP, for those alone who know the graph's secret.

Both sides prove that they know it before anything they send is read as a message. What is sent afterwards is neither
encrypted nor signed: the network between the machines of a Ray is taken for a private one, as Ray itself takes it.
"""

from __future__ import annotations

import hmac
import os
import socket
import threading
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["Address", "Gate", "dial"]

_NONCE = 32
_PATIENCE = 10.0
"""Seconds that the other side has to be there and to prove what it knows."""

_AT_ONCE = 64
"""Most connections that have not proven anything yet."""


class Address(NamedTuple):
    """Where a process is.

    Attributes:
        node: the machine, as Ray knows it.
        host, port: its door.
    """

    node: str
    host: str
    port: int


class Gate:
    """The door.

    Args:
        host: address of this machine that others can reach.
        secret: of the graph.
        adopt: takes the sockets of those who know it, in a thread of their own.
    """

    def __init__(self, host: str, secret: bytes, adopt: Callable[[socket.socket], None]) -> None:
        self._secret = secret
        self._adopt = adopt
        self._room = threading.Semaphore(_AT_ONCE)
        self._listener = socket.create_server((host, 0), family=_family(host), backlog=256)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="flow gate", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return  # it was closed
            if self._room.acquire(blocking=False):
                threading.Thread(target=self._admit, args=(sock,), name="flow gate", daemon=True).start()
            else:
                sock.close()

    def _admit(self, sock: socket.socket) -> None:
        try:
            sock.settimeout(_PATIENCE)
            ours = os.urandom(_NONCE)
            sock.sendall(ours)
            theirs = _read(sock, _NONCE)
            proof = _read(sock, _NONCE)
            if not hmac.compare_digest(proof, _proof(self._secret, b"caller", ours, theirs)):
                raise OSError("the secret is another one")
            sock.sendall(_proof(self._secret, b"called", theirs, ours))
            _prepare(sock)
            self._adopt(sock)
        except OSError:
            sock.close()
        finally:
            self._room.release()

    def close(self) -> None:
        """Let nobody in any more."""
        try:
            self._listener.shutdown(socket.SHUT_RDWR)  # ends the wait of the other thread
        except OSError:
            pass
        self._listener.close()


def dial(address: Address, secret: bytes) -> socket.socket:
    """A connection to the process at an address.

    Raises:
        OSError: nobody is there, or somebody who does not know the secret.
    """
    sock = socket.create_connection((address.host, address.port), _PATIENCE)
    try:
        theirs = _read(sock, _NONCE)
        ours = os.urandom(_NONCE)
        sock.sendall(ours + _proof(secret, b"caller", theirs, ours))
        if not hmac.compare_digest(_read(sock, _NONCE), _proof(secret, b"called", ours, theirs)):
            raise ConnectionRefusedError(f"{address.host}:{address.port} is not of this graph")
        _prepare(sock)
        return sock
    except BaseException:
        sock.close()
        raise


def _proof(secret: bytes, role: bytes, first: bytes, second: bytes) -> bytes:
    return hmac.digest(secret, role + first + second, "sha256")


def _read(sock: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = sock.recv(size - len(found))
        if not more:
            raise ConnectionResetError("the other side has hung up")
        found += more
    return found


def _prepare(sock: socket.socket) -> None:
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # a machine that is gone says nothing: it is asked after 10 s of silence, and given up after 30 s
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _family(host: str) -> int:
    return socket.AF_INET6 if ":" in host else socket.AF_INET

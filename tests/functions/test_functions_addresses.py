"""Addresses of Ray (`ray.cluster.address_check`): within seconds they connect, or an error says what is wrong.

Web servers, silent servers and others that are no Ray listen in the tests.
"""

import contextlib
import http.server
import socket
import threading
import time

import pytest

from toprope import functions as yr
from toprope.errors import EnvironmentProblem
from toprope.functions.ray.cluster.address_check import _text, check_ray, parted_address

SETTINGS = bytes(3) + b"\x04" + bytes(5)
GRPC = b"\x88\x40\x0ccontent-type\x10application/grpc"  # :status 200, and the type
GRPC_OF_GO = bytes.fromhex("885f8b1d75d0620d263d4c4d6564")
UNKNOWN = b"\x40\x0bgrpc-status\x0212"
UNKNOWN_TO_GO = bytes.fromhex("40889acac8b21234da8f") + b"\x0212"
UNAUTHENTICATED = b"\x40\x0bgrpc-status\x0216"
NOT_FOUND = b"\x8d\x40\x0ccontent-type\x09text/html"


@contextlib.contextmanager
def server(answer):
    """The port of a server that does `answer` with each connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.05)
        ended = threading.Event()

        def serve():
            while not ended.is_set():
                with contextlib.suppress(TimeoutError):
                    connection, _ = listening.accept()
                    with connection:
                        answer(connection, ended)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            ended.set()
            thread.join()


def silent(connection, ended):
    ended.wait(30)


def speaks(headers, behind=b"", flags=5):
    """A server of HTTP/2 that answers a call with these headers; None for never."""

    def answer(connection, ended):
        connection.sendall(SETTINGS)
        said = b""
        while b"/ray.rpc." not in said:
            more = connection.recv(1024)
            if not more:
                return
            said += more
        if headers is None:
            ended.wait(30)
            return
        frame = len(headers).to_bytes(3, "big") + bytes([1, flags]) + bytes([0, 0, 0, 1])
        connection.sendall(frame + headers + behind)
        connection.settimeout(5)
        with contextlib.suppress(OSError):
            connection.recv(64)

    return answer


def resets(connection, ended):
    connection.sendall(SETTINGS)
    connection.recv(256)
    connection.sendall(bytes([0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, 2]))
    ended.wait(5)


def closes(connection, ended):
    connection.recv(1)


def web(connection, ended):
    connection.recv(64)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


@pytest.mark.pure
@pytest.mark.parametrize(("address", "parts"), [
    ("a.b:1", ("a.b", 1)), ("ray:a:2", ("a", 2)), ("ray://a:3", ("a", 3)), ("[::1]:4", ("::1", 4)),
    ("ray:[::1]:5", ("::1", 5)),
])  # fmt: skip
def test_parts_of_an_address(address, parts):
    assert parted_address(address) == parts


OTHER, OTHER_GRPC = "it does not speak gRPC", "it speaks gRPC, and does not know Ray's calls"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (silent, OTHER),
        (closes, OTHER),
        (web, OTHER),
        (resets, OTHER),
        (speaks(NOT_FOUND), OTHER),
        (speaks(GRPC + UNKNOWN), OTHER_GRPC),
        (speaks(GRPC_OF_GO + UNKNOWN_TO_GO), OTHER_GRPC),
        (speaks(b"\x3f\xe1\x1f" + GRPC + UNKNOWN), OTHER_GRPC),
        (speaks(b"\x02" + GRPC + UNKNOWN + b"\0\0", flags=13), OTHER_GRPC),
    ],
    ids=["silent", "closes", "web", "resets", "web of HTTP/2", "grpc", "grpc of Go", "grpc with a table", "padded"],
)
def test_what_listens_and_is_no_ray_is_said_to_be_none(answer, why):
    with server(answer) as port:
        began = time.monotonic()
        with pytest.raises(EnvironmentProblem, match=f"what listens at 127.0.0.1, port {port} is no Ray") as caught:
            check_ray(f"127.0.0.1:{port}")
        assert time.monotonic() - began < 10  # 3 s on an idle machine
        assert why in str(caught.value)
        assert "leave server_address" in str(caught.value)


def test_a_real_web_server_is_said_to_be_no_ray():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as web_server:
        thread = threading.Thread(target=web_server.serve_forever)
        thread.start()
        try:
            with pytest.raises(EnvironmentProblem, match="is no Ray: it does not speak gRPC"):
                check_ray(f"127.0.0.1:{web_server.server_port}")
        finally:
            web_server.shutdown()
            thread.join()


@pytest.mark.parametrize("answer", [speaks(GRPC, SETTINGS), speaks(GRPC + UNAUTHENTICATED), speaks(None)],
                         ids=["answers", "asks for a token", "is busy"])  # fmt: skip
@pytest.mark.parametrize("form", ["ray:{}", "ray://{}"])
def test_what_may_be_a_ray_is_left_to_ray(answer, form):
    with server(answer) as port:
        check_ray(form.format(f"127.0.0.1:{port}"))


def test_a_ray_that_encrypts_was_said_to_be_none(monkeypatch):
    monkeypatch.setenv("RAY_USE_TLS", "1")
    with server(silent) as port:
        check_ray(f"127.0.0.1:{port}")


@pytest.mark.pure
@pytest.mark.parametrize(("size", "length"), [(5, "05"), (126, "7e"), (127, "7f00"), (254, "7f7f"), (255, "7f8001")])
def test_the_length_of_a_text_is_written_as_hpack_has_it(size, length):
    assert _text("x" * size) == bytes.fromhex(length) + b"x" * size


@pytest.mark.parametrize("form", ["{}", "ray:{}", "ray://{}"])
def test_an_address_at_which_nothing_listens_fails_at_once_and_says_what_to_do(form):
    pytest.importorskip("ray")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = form.format(f"127.0.0.1:{closed.getsockname()[1]}")
    with pytest.raises(EnvironmentProblem, match=r"nothing listens at 127\.0\.0\.1") as caught:
        yr.init(yr.Config(server_address=address, ds_address="127.0.0.1:31501"))
    assert "leave server_address" in str(caught.value)
    assert not yr.is_initialized()


def test_other_forms_are_refused():
    for address in ("ray:", "ray:/x:1", "somewhere", "http://a:1"):
        with pytest.raises(ValueError, match="invalid server_address"):
            yr.init(yr.Config(server_address=address))

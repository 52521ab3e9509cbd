"""Addresses of Ray: within seconds they connect, or it is said what is wrong."""

import contextlib
import socket
import threading
import time

import pytest

from toprope import functions as yr
from toprope.errors import EnvironmentProblem
from toprope.functions.ray.reach import check_ray, parted_address

SETTINGS = bytes(3) + b"\x04" + bytes(5)


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


def grpc(connection, ended):
    connection.sendall(SETTINGS)
    connection.recv(64)


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


@pytest.mark.parametrize("answer", [silent, closes, web])
def test_what_listens_and_is_no_ray_is_said_to_be_none(answer):
    with server(answer) as port:
        began = time.monotonic()
        with pytest.raises(EnvironmentProblem, match=f"what listens at 127.0.0.1, port {port} is no Ray") as caught:
            check_ray(f"127.0.0.1:{port}")
        assert time.monotonic() - began < 10  # 3 s on an idle machine
        assert "leave server_address" in str(caught.value)


def test_what_speaks_grpc_may_be_a_ray():
    with server(grpc) as port:
        check_ray(f"ray:127.0.0.1:{port}")


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

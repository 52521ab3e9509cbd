"""Limits of bodies and whole answers, on plain ASGI.

Holds `toprope.http_bodies`; the measure is the ASGI specification.
"""

import asyncio
import socket
import threading
import time
from contextlib import contextmanager

import pytest

from toprope.http_bodies import RestReader, bounded, declared_length, read, send_whole


class TooLarge(Exception):
    pass


class Gone(Exception):
    pass


def receiving(*messages):
    found = iter(messages)

    async def receive():
        return next(found)

    return receive


def part(body, more=True):
    return {"type": "http.request", "body": body, "more_body": more}


def test_a_length_is_a_number_of_digits_or_none_is_declared():
    assert declared_length({"content-length": "12"}) == 12
    for text in ("", "x", "-1", "1.5", " 1", "\xb2"):  # the last is a digit to str.isdigit and none to int
        assert declared_length({"content-length": text}) is None, text
    assert declared_length({}) is None
    assert declared_length({"content-length": "3", "transfer-encoding": "chunked"}) is None
    assert declared_length({"content-length": "9" * 5000}) >= 10**18  # more digits than int reads


def test_a_body_of_parts_is_read_whole_up_to_its_limit():
    parts = part(b"abc"), part(b""), {"type": "http.request"}
    assert asyncio.run(read(bounded(receiving(*parts), 3, TooLarge), Gone)) == b"abc"
    with pytest.raises(TooLarge, match="2"):
        asyncio.run(read(bounded(receiving(*parts), 2, TooLarge), Gone))
    with pytest.raises(Gone):
        asyncio.run(read(receiving(part(b"abc"), {"type": "http.disconnect"}), Gone))


def test_a_whole_answer_has_its_length():
    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(send_whole(send, 429, "text/plain", b"later", {"Retry-After": "5"}))
    start, body = sent
    assert start["status"] == 429
    assert dict(start["headers"]) == {b"content-type": b"text/plain", b"content-length": b"5", b"retry-after": b"5"}
    assert body == {"type": "http.response.body", "body": b"later"}


async def refusing(scope, receive, send):
    await send_whole(send, 413, "text/plain", b"too large")


@contextmanager
def serving(application):
    uvicorn = pytest.importorskip("uvicorn")
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(application, log_level="critical", lifespan="off"))
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        yield listening.getsockname()
    finally:
        server.should_exit = True
        thread.join()


def head(*lines):
    return "\r\n".join(("POST / HTTP/1.1", "Host: localhost", *lines, "", "")).encode()


@pytest.mark.parametrize("lines", [(), ("Connection: close",)], ids=["keeps", "closes"])
def test_a_client_that_still_sends_reads_the_answer_instead_of_a_reset(lines):
    """A refused upload was answered and the connection closed with bytes unread: its sender saw "reset by peer".

    The page's server asked for the end itself; urllib asks for it in every request.
    """
    body = b"x" * 2**23
    with serving(RestReader(refusing)) as address, socket.create_connection(address, 60) as client:
        client.sendall(head(f"Content-Length: {len(body)}", *lines))
        time.sleep(0.5)  # the answer is there before the body: that was the fault's moment
        client.sendall(body)
        assert client.recv(2**16).startswith(b"HTTP/1.1 413")


def test_a_client_that_asks_before_it_sends_is_answered_at_once():
    with serving(RestReader(refusing)) as address, socket.create_connection(address, 60) as client:
        client.sendall(head("Content-Length: 99", "Expect: 100-continue"))
        answer = b""
        while got := client.recv(2**16):  # until the server closes: what was announced never comes
            answer += got
        assert answer.startswith(b"HTTP/1.1 413")


def test_the_rest_of_a_body_is_read_up_to_a_limit(monkeypatch):
    monkeypatch.setattr("toprope.http_bodies._REST_BYTES", 6)
    sent, taken = [], []

    async def receive():
        taken.append(part(b"abc"))
        return taken[-1]

    async def send(message):
        sent.append((message["type"], message.get("body"), message.get("more_body", False), len(taken)))

    scope = {"type": "http", "headers": [(b"Content-Length", b"999")]}
    asyncio.run(RestReader(refusing)(scope, receive, send))
    assert sent[1:] == [("http.response.body", b"too large", True, 0), ("http.response.body", b"", False, 2)]


def test_nothing_is_read_of_a_client_that_waits_for_100_continue():
    sent, taken = [], []

    async def receive():
        taken.append(part(b"", more=False))
        return taken[-1]

    async def send(message):
        sent.append((message["type"], message.get("more_body", False)))

    scope = {"type": "http", "headers": [(b"Content-Length", b"99"), (b"Expect", b"100-continue")]}
    asyncio.run(RestReader(refusing)(scope, receive, send))
    assert (sent[1:], taken) == ([("http.response.body", False)], [])

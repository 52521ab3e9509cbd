"""Limits of bodies and whole answers, on plain ASGI.

Holds `toprope.http_bodies`; the measure is the ASGI specification.
"""

import asyncio

import pytest

from toprope.http_bodies import bounded, declared_length, read, send_whole


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

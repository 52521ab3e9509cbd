"""Access control of the page's server: names, origins, lengths, and the number of uploads. No Gradio here.

Holds `images.web.access_control`.
"""

import asyncio
import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toprope.images.web.access_control import FORM, AccessControl, Uploads, host_allowed, origin_allowed


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:7860",
        "127.0.0.1:7860",
        "[::1]:7860",
        "10.1.2.3",
        "a.localhost:1",
        "gpu.lab:80",
        "gpu.lab.",
    ],
)
def test_addresses_localhost_and_given_names_are_the_servers(host) -> None:
    assert host_allowed(host, {"gpu.lab"})


@pytest.mark.parametrize(
    "host", ["", "evil.example", "evil.example:7860", "localhost.evil.example", "127.0.0.1.nip.io"]
)
def test_a_name_that_was_bound_to_this_address_by_others_is_not(host) -> None:
    assert not host_allowed(host, {"gpu.lab"})


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("http://127.0.0.1:7860", True),
        ("https://gpu.lab", True),
        ("http://127.0.0.1:7861", False),
        ("http://localhost:7860", False),
        ("http://evil.example", False),
        ("null", False),
        ("", False),
        ("http://[", False),
        ("http://127.0.0.1:x", False),
        ("file:///etc/passwd", False),
    ],
)
def test_only_the_servers_own_pages_may_send(origin, allowed) -> None:
    assert origin_allowed(origin, "127.0.0.1:7860", {"gpu.lab"}) is allowed


@given(st.text(max_size=40), st.text(max_size=40))
def test_no_header_is_too_strange(origin, host) -> None:
    assert isinstance(host_allowed(host), bool)
    assert isinstance(origin_allowed(origin, host), bool)


class Inner:
    """The application behind the access control."""

    def __init__(self):
        self.seen = []
        self.status = 200

    async def __call__(self, scope, receive, send):
        self.seen.append(scope["path"])
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await send({"type": "http.response.body", "body": b"inner"})


def asked(access_control, path="/", method="GET", **headers):
    """The status and the text of an answer."""
    sent = []

    async def send(message):
        sent.append(message)

    headers = {"host": "127.0.0.1:7860"} | {name.replace("_", "-"): value for name, value in headers.items()}
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    asyncio.run(access_control({"type": "http", "path": path, "method": method, "headers": raw}, None, send))
    return sent[0]["status"], b"".join(each.get("body", b"") for each in sent[1:]).decode()


@pytest.fixture
def inner():
    return Inner()


@pytest.fixture
def access_control(inner, tmp_path):
    uploads = Uploads(lambda: map(str, tmp_path.iterdir()), most=2, size=100, in_use=lambda: (), spare=60)
    return AccessControl(inner, names=(), uploads=uploads, one=1000, files=3, edits=1)


UPLOAD = "/gradio_api/upload"


def test_what_is_refused_never_reaches_the_application(access_control, inner) -> None:
    evil = "http://evil.example"
    for status, options in (
        (403, {"host": "evil.example"}),
        (403, {"method": "POST", "origin": evil}),
        (403, {"method": "POST", "origin": "null", "path": "/api/edits"}),
        (403, {"method": "POST", "sec_fetch_site": "cross-site"}),
        (411, {"method": "POST", "transfer_encoding": "chunked"}),
        (413, {"method": "POST", "content_length": str(FORM + 1)}),
        (413, {"method": "POST", "path": UPLOAD, "content_length": str(FORM + 3001)}),
        (413, {"method": "POST", "path": "/api/edits", "content_length": str(FORM + 2001)}),
    ):
        got, text = asked(access_control, **options)
        assert got == status, options
        assert "do" in text
        assert len(text) < 400
    assert inner.seen == []
    for options in (
        {"origin": evil},  # reading is what the browser itself prevents
        {"method": "POST", "origin": "http://127.0.0.1:7860"},
        {"method": "POST"},  # a program
        {"method": "POST", "path": UPLOAD, "content_length": "3000"},
    ):
        assert asked(access_control, **options) == (200, "inner"), options
    assert len(inner.seen) == 4


def test_uploads_are_bounded_in_number_and_the_oldest_that_nobody_uses_go(access_control, inner, tmp_path) -> None:
    for number in range(2):
        (tmp_path / f"{number}.png").write_bytes(b"x")
    assert asked(access_control, UPLOAD, "POST")[0] == 429  # both are new
    assert inner.seen == []
    old = time.time() - 100
    os.utime(tmp_path / "1.png", (old, old))
    assert asked(access_control, UPLOAD, "POST")[0] == 200
    assert [each.name for each in tmp_path.iterdir()] == ["0.png"]


def test_uploads_are_bounded_in_bytes_and_what_an_edit_waits_for_stays(tmp_path) -> None:
    used, old = tmp_path / "used.png", time.time() - 100
    for path in (used, tmp_path / "other.png"):
        path.write_bytes(b"x" * 90)
        os.utime(path, (old, old))
    uploads = Uploads(
        lambda: [*map(str, tmp_path.iterdir()), "gone"], most=9, size=100, in_use=lambda: {str(used)}, spare=60
    )
    assert uploads.make_room()
    assert [each.name for each in tmp_path.iterdir()] == ["used.png"]
    used.write_bytes(b"x" * 200)
    os.utime(used, (old, old))
    assert not uploads.make_room()
    assert used.exists()


def test_a_file_that_is_too_large_is_refused_in_our_words(access_control, inner) -> None:
    inner.status = 413
    status, text = asked(access_control, UPLOAD, "POST", content_length="2000")
    assert status == 413
    assert "--max-upload" in text
    assert "inner" not in text

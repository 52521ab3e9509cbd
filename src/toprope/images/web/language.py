"""Links that choose the language of the page, stored in a cookie: for browsers with another first language.

Gradio reads `navigator.language` when the page is loaded. Therefore a script at the head of the page sets it to the
chosen language. The server's own texts follow the header Accept-Language, which is replaced too.

`web.serving` puts it around the Gradio application. The tags of languages are those of browsers and of Gradio. A
further language needs its texts in `web.texts` and `web.messages`. Tests: tests/images/test_images_messages.py.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qs

from toprope.http_bodies import Application, Message, Receive, Send
from toprope.images.web.texts import LANGUAGES

__all__ = ["COOKIE", "SWITCH", "LanguageChoice"]

COOKIE = "toprope-language"
YEAR = 365 * 86400

SWITCH = " · ".join(
    f'<a href="?language={name}" lang="{name}" hreflang="{name}">{own}</a>'
    for name, own in (("en", "English"), ("zh", "中文"))
)
"""Links that choose a language, each written in its own."""

TAGS = {"en": "en", "zh": "zh-CN"}
"""Languages as browsers name them."""


class LanguageChoice:
    """ASGI application that serves the page in the language that the visitor chose.

    Args:
        app: serves the page in the browser's language.
    """

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request of one of the links, or pass the request on with the chosen language."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        page = scope["method"] == "GET" and scope["path"] == "/"
        wanted = parse_qs(scope["query_string"].decode("latin-1")).get("language", [""])[0] if page else ""
        if wanted in LANGUAGES:
            cookie = f"{COOKIE}={wanted}; Path=/; Max-Age={YEAR}; SameSite=Lax"
            headers = [(b"location", b"./"), (b"set-cookie", cookie.encode()), (b"content-length", b"0")]
            await send({"type": "http.response.start", "status": 303, "headers": headers})
            await send({"type": "http.response.body", "body": b""})
            return
        chosen = _chosen(scope["headers"])
        if chosen is None:
            await self._app(scope, receive, send)
            return
        replaced = {b"accept-language"} | ({b"accept-encoding", b"if-none-match"} if page else set())
        kept = [(name, value) for name, value in scope["headers"] if name.lower() not in replaced]
        scope = {**scope, "headers": [*kept, (b"accept-language", TAGS[chosen].encode())]}
        await self._app(scope, receive, _Marked(send, chosen) if page else send)


class _Marked:
    """Changes the language of an answer's page. Sends the answer as a whole, since its length changes."""

    def __init__(self, send: Send, language: str) -> None:
        self._send, self._language = send, language
        self._start: Message = {}
        self._body = b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        self._body += message.get("body", b"")
        if message.get("more_body"):
            return
        headers = [(name, value) for name, value in self._start["headers"] if name.lower() != b"content-length"]
        body = marked(self._body, self._language)
        headers.append((b"content-length", str(len(body)).encode()))
        await self._send({**self._start, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})


def marked(page: bytes, language: str) -> bytes:
    """An HTML page marked with a language, which its scripts see as the browser's language.

    Args:
        page: in UTF-8.
        language: one of `LANGUAGES`.
    """
    tag = TAGS[language]
    found = "".join(f"Object.defineProperty(navigator, '{name}', {{get: () => {value}}});" for name, value in (
        ("language", f"'{tag}'"), ("languages", f"['{tag}']"),
    ))  # fmt: skip
    page = re.sub(rb'(<html\b[^>]*?\blang=)"[^"]*"', rb'\1"%s"' % tag.encode(), page, count=1)
    return re.sub(rb"<head\b[^>]*>", lambda each: each[0] + f"<script>{found}</script>".encode(), page, count=1)


def _chosen(headers: list[tuple[bytes, bytes]]) -> str | None:
    """The language in a request's cookie `COOKIE`; None without that cookie."""
    for name, value in headers:
        for each in value.decode("latin-1").split(";") if name.lower() == b"cookie" else ():
            key, _, language = each.strip().partition("=")
            if key == COOKIE and language in LANGUAGES:
                return language
    return None

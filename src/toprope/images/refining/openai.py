"""Refiner that asks a server with OpenAI's chat completions, with Python's own HTTP client.

Made by `refining.opening` for a name such as `openai:URL`. Paths, fields and the variable of the key are OpenAI's API,
which vLLM and others follow. The key goes to the named server alone, and into no record. Times, sizes and the statuses
that are tried again are free. Tests: tests/images/test_images_refine.py.
"""

from __future__ import annotations

import base64
import http.client
import io
import json
import math
import os
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from toprope.errors import UsageError
from toprope.images.refining.prompt_templates import SYSTEM
from toprope.images.refining.provider import NotRefined, Provider

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["OpenAI", "as_data_url"]

EDGE = 1024
"""Longer side, in pixels, of the picture that is sent; vision models scale pictures down to about this."""

MOST = 2**20
"""Largest answer in bytes."""

AGAIN = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
"""HTTP status codes after which the request is repeated."""

OPENAIS_OWN = "gpt-4o"
"""Default model of OpenAI's own server, as in HiDream-E1's scripts."""


class _Again(Exception):  # noqa: N818
    """A failure after which the request is repeated; the message gives the reason."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirects, so that the key is sent only to the server that was named."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


class OpenAI(Provider):
    """Client of one server.

    Args:
        url: its address, including "/v1".
        model: name of the model; None for the first one that the server lists.
        timeout: seconds for one try.
        retries: number of tries after the first, for errors that may be temporary.
        pause: seconds before the first retry; each later pause is twice as long.
    """

    def __init__(
        self, url: str, model: str | None = None, timeout: float = 60.0, retries: int = 2, pause: float = 0.5
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or not _has_port(url):
            raise UsageError(
                f"{url!r} is no address of a server.", do="give one such as openai:http://localhost:8000/v1"
            )
        if parts.username or parts.password:
            raise UsageError("the address has a password in it, which records would show.", do="set OPENAI_API_KEY")
        if not (math.isfinite(timeout) and timeout > 0) or retries < 0:
            raise UsageError(
                f"timeout is {timeout:g} and retries is {retries}.", do="give seconds above 0, and retries of 0 or more"
            )
        self.url, self.timeout, self.retries, self.pause = urlunsplit(parts).rstrip("/"), timeout, retries, pause
        self.model = model or (OPENAIS_OWN if parts.hostname == "api.openai.com" else None)
        self._open = urllib.request.build_opener(_NoRedirect).open

    def describe(self) -> dict[str, Any]:
        """Facts for JSON: address, model, time-out and retries."""
        return {
            "provider": f"openai:{self.url}", "model": self.model, "timeout": self.timeout, "retries": self.retries,
        }  # fmt: skip

    def ask(self, picture: Image, text: str) -> str:
        """Send the prompt and return the model's reply, with retries."""
        sent = [{"type": "image_url", "image_url": {"url": as_data_url(picture)}}, {"type": "text", "text": text}]
        for number in range(self.retries + 1):
            if number:
                time.sleep(self.pause * 2 ** (number - 1))
            try:
                self.model = self.model or self._first_model()
                asked = {
                    "model": self.model,
                    "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": sent}],
                    "max_tokens": 500,
                    "temperature": 0.2,
                }
                return _content(self._json("chat/completions", asked))
            except _Again as error:
                problem = str(error)
        raise NotRefined(problem if not self.retries else f"{problem}, {self.retries + 1} times")

    def _first_model(self) -> str:
        listed = self._json("models")
        try:
            return str(listed["data"][0]["id"])
        except (KeyError, IndexError, TypeError):
            raise NotRefined("the server lists no model, name one: openai:URL?model=NAME") from None

    def _json(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Send a request to the server; return the JSON of its reply."""
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if key := os.environ.get("OPENAI_API_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/{path}", data, headers)
        end = time.monotonic() + self.timeout
        try:
            with self._open(request, timeout=self.timeout) as reply:
                text = _read(reply, end)
        except urllib.error.HTTPError as error:
            with error:
                said = f"the server said HTTP {error.code} {error.reason}"
            raise (_Again if error.code in AGAIN else NotRefined)(said) from None
        except TimeoutError:
            raise _Again(f"the server did not answer within {self.timeout:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "reason", error)
            if isinstance(why, TimeoutError):
                raise _Again(f"the server did not answer within {self.timeout:g} s") from None
            raise _Again(f"the server cannot be reached: {why or type(error).__name__}") from None
        try:
            return json.loads(text)
        except ValueError:
            raise NotRefined("what the server sent is no JSON") from None


def _has_port(url: str) -> bool:
    """True if the port of an address is valid or left out."""
    try:
        return urlsplit(url).port != 0
    except ValueError:
        return False


def _read(reply: Any, end: float) -> bytes:
    """Read a whole reply until `end`. The time-out of a socket is for one packet, so a slow server would never end."""
    pieces, size = [], 0
    while piece := reply.read1(65536):
        pieces.append(piece)
        size += len(piece)
        if size > MOST:
            raise NotRefined(f"the server sent more than {MOST} bytes")
        if time.monotonic() > end:
            raise TimeoutError
    return b"".join(pieces)


def _content(reply: Any) -> str:
    """The text of the first message in a server's reply."""
    try:
        content = reply["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        raise NotRefined("what the server sent has no message of a model") from None
    if isinstance(content, list):  # some servers answer in parts
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def as_data_url(picture: Image) -> str:
    """Encode a picture as JPEG in a "data:" URL, scaled down to `EDGE`."""
    small = picture.convert("RGB")
    small.thumbnail((EDGE, EDGE))
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=90)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")

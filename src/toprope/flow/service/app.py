"""HTTP application of a graph: FastAPI, with one endpoint that feeds the graph.

`toprope.flow.service.Service`, for users, and `toprope serve`. Here are admission, deadlines, streaming and refusals;
bodies are in `bodies`, descriptions in `openapi` and `ports`. docs/serve.md promises what clients see: paths, status
codes and headers; the times at the head are free. An accepted request is counted once, and out again however it ends.
Tests: tests/flow/test_serve_app.py (the graph is a stand-in), tests/flow/test_serve_http.py (a real one).
"""

from __future__ import annotations

import asyncio
import functools
import math
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import toprope
from toprope.flow.exceptions import FAILED, DfException
from toprope.flow.flow_graph import FlowGraph
from toprope.flow.futures import DeadlineExceeded, QueueFull, ResultStream, size_of
from toprope.flow.graph.streams import generators
from toprope.flow.points.process_points import GraphProcessPoint
from toprope.flow.service import bodies, prometheus
from toprope.flow.service.media_types import BYTES, accepted, fits, may_be, type_of
from toprope.flow.service.openapi import description
from toprope.flow.service.ports import ports_of
from toprope.flow.service.problems import MEDIA_TYPE as PROBLEM
from toprope.flow.service.problems import Problem
from toprope.flow.worker.calls import Cancelled
from toprope.http_bodies import (
    Message,
    Receive,
    RestReader,
    Send,
    bounded,
    declared_length,
    read,
    send_start,
    send_whole,
)

__all__ = ["Limits", "Service"]

_EVENTS = "text/event-stream"
_LARGE = 256 * 1024
"""Bytes of a body from which on it is read and written in another thread, so that other requests go on."""

_KEEP_ALIVE = 15.0
"""Seconds after which a stream without news sends a comment, which keeps proxies from closing it."""

_PATIENCE = 0.02
"""Time after which the server checks whether the client of a request has gone, in seconds."""

_WRITE = 60.0
"""Seconds that a client may take to read a part of its answer."""

_GONE = 499

_LONGER = "start the service with a longer --timeout, or send less"


@dataclass(frozen=True)
class Limits:
    """Limits of a service: bytes, requests at once, and seconds.

    Attributes:
        ongoing: requests that are accepted and not answered yet; more get 429.
        body: bytes of a request's body.
        seconds: the longest time from a request to its answer.
    """

    ongoing: int = 128
    body: int = 32 * 2**20
    seconds: float = 60.0


class Service:
    """A graph as an HTTP service.

    Args:
        graph: the graph; it is started, and its results go to the service alone.
        limits: of requests.

    Attributes:
        app: the ASGI application, for any server.
        figures: the requests so far.

    Raises:
        DfException: the graph cannot run, or has stages whose results belong to no single request.
    """

    def __init__(self, graph: FlowGraph, limits: Limits | None = None) -> None:
        self._graph = graph
        self._limits = limits or Limits()
        self.figures = prometheus.RequestFigures()
        self._pace = _AnswerRate()
        self._is_draining = False
        names = generators(graph.plan)
        specs = [node.stage_spec() for node in graph.plan.nodes]
        models = frozenset(
            place
            for place, (node, spec) in enumerate(zip(graph.plan.nodes, specs, strict=True))
            if spec.kind == "npu" or isinstance(node.point, GraphProcessPoint)
        )
        self.ports = ports_of(graph.plan, models, bool(names))
        graph.start()
        self.app = self._made_app()

    def _made_app(self) -> FastAPI:
        app = FastAPI(title=self._graph.name, version=toprope.__version__)
        described = description(
            self._graph.name, toprope.__version__, self.ports, bodies.SAFETENSORS, self._limits.seconds
        )
        app.openapi = lambda: described  # type: ignore[method-assign]
        app.router.routes += [
            Route("/predict", self._predict, methods=["POST"]),
            Route("/healthz", self._healthz, methods=["GET"]),
            Route("/readyz", self._readyz, methods=["GET"]),
            Route("/metrics", self._metrics, methods=["GET"]),
        ]
        app.add_middleware(RestReader)
        app.add_exception_handler(HTTPException, _on_http_error)  # type: ignore[arg-type]
        return app

    # State

    def drain(self) -> None:
        """Accept no more requests: they get 503. Those that were accepted are answered."""
        self._is_draining = True

    @property
    def is_idle(self) -> bool:
        """True while no request is ongoing."""
        return self.figures.ongoing == 0

    @property
    def error(self) -> BaseException | None:
        """The reason why the graph cannot go on; None while it can."""
        return self._graph.error

    async def _healthz(self, request: Request) -> Response:
        if self.error is not None:
            return JSONResponse({"status": "failed", "detail": _text(self.error)}, 503)
        return JSONResponse({"status": "ok"})

    async def _readyz(self, request: Request) -> Response:
        if self.error is not None or self._is_draining:
            return JSONResponse({"status": "stopping" if self._is_draining else "failed"}, 503)
        return JSONResponse({"status": "ready"})

    async def _metrics(self, request: Request) -> Response:
        edges = await asyncio.to_thread(self._graph.metrics)
        text = prometheus.exposition(self.figures, self._graph.stage_metrics(), edges, self._graph.restarts)
        return Response(text, media_type=prometheus.MEDIA_TYPE)

    # Requests

    async def _predict(self, request: Request) -> Response:
        return _Answer(self, request)

    def admit(self) -> None:
        """Accept a request, or refuse it if there are too many or the service ends.

        Raises:
            Problem: 503 where the service ends, 429 where too many are ongoing.
        """
        if self._is_draining or self.error is not None:
            raise Problem(
                503, "the service is stopping" if self._is_draining else f"a stage has ended: {_text(self.error)}",
                "send the request to another instance", {"Retry-After": "5", "Connection": "close"},
            )  # fmt: skip
        if self.figures.ongoing >= self._limits.ongoing:
            raise self._too_many(f"{self.figures.ongoing} requests are ongoing, which is the most that are accepted")
        if not self.figures.ongoing:
            self._pace.begin(time.monotonic())
        self.figures.ongoing += 1

    def _too_many(self, detail: str) -> Problem:
        seconds = self._pace.seconds_for(self.figures.ongoing)
        return Problem(429, detail, f"send the request again in {seconds} s", {"Retry-After": str(seconds)})

    def deadline_of(self, request: Request) -> float:
        """Seconds that a request may take.

        Raises:
            Problem: 400: the parameter `timeout` is no such number.
        """
        texts = request.query_params.getlist("timeout")
        if not texts:
            return self._limits.seconds
        if len(texts) > 1:
            raise Problem(400, f"timeout is given {len(texts)} times", "give it once", field="timeout")
        text = texts[0]
        try:
            found = float(text)
        except ValueError:
            found = math.nan
        if not 0 < found <= self._limits.seconds:
            most = f"a number of seconds, more than 0 and at most {self._limits.seconds:g}"
            raise Problem(400, f"timeout must be {most}, got {text!r}", field="timeout", expected=most, got=text)
        return found

    async def inputs_of(self, request: Request) -> tuple[dict[str, Any], str, int]:
        """The values of a request's body, the body's type, and its bytes.

        Raises:
            Problem: 400, 413, 415, 422.
        """
        encoding = request.headers.get("content-encoding", "").strip().lower()
        if encoding not in ("", "identity"):
            raise Problem(
                415, f"no body with Content-Encoding: {encoding} is taken", "send the body as it is",
                {"Accept-Encoding": "identity"},
            )  # fmt: skip
        header = request.headers.get("content-type", "")
        media_type = header.partition(";")[0].strip().lower()
        limit = self._limits.body
        length = declared_length(request.headers) or 0
        if length > limit:
            raise _too_large(limit)
        if media_type == "multipart/form-data":
            return await self._of_form(request), media_type, length
        body = await read(bounded(request.receive, limit, _too_large), ClientDisconnect)
        if media_type in ("", "application/json", "application/x-www-form-urlencoded") or media_type.endswith("+json"):
            # curl -d sends JSON under the type of forms
            found = await _run_large_in_thread(len(body), bodies.values_of_json, body, self.ports)
        elif bodies.is_safetensors(media_type):
            found = await _run_large_in_thread(len(body), bodies.values_of_safetensors, body, self.ports)
        else:
            found = self._of_bytes(body, media_type)
        return found, media_type, len(body)

    def _of_bytes(self, body: bytes, media_type: str) -> dict[str, Any]:
        inputs = list(self.ports.inputs.values())
        if len(inputs) == 1 and not inputs[0].is_tensor:
            return {inputs[0].name: body}
        taken = f"application/json, multipart/form-data and {bodies.SAFETENSORS}"
        raise Problem(
            415, f"no body of type {media_type} is taken: a graph needs one input that takes any value for that",
            f"send {taken}",
        )  # fmt: skip

    async def _of_form(self, request: Request) -> dict[str, Any]:
        inputs, limit = self.ports.inputs, self._limits.body
        limited = Request(request.scope, bounded(request.receive, limit, _too_large))
        try:
            # a part that is no input is refused below: it must not be the number of parts that is refused
            form = await limited.form(max_files=len(inputs) + 8, max_fields=len(inputs) + 8, max_part_size=limit)
        except (MultiPartException, HTTPException) as error:
            text = error.message if isinstance(error, MultiPartException) else error.detail
            raise Problem(400, f"the body is no form: {text}") from None
        try:
            parts = form.multi_items()
            names = [name for name, _ in parts]
            for name in names:
                if names.count(name) > 1:
                    raise Problem(422, f"the form has {name!r} {names.count(name)} times", field=name)
            bodies.check_names(names, self.ports)
            found = {}
            for name, part in parts:
                if isinstance(part, str):
                    found[name] = bodies.value_of_part(part, "", "", inputs[name])
                else:
                    body, kind = await part.read(), (part.content_type or "").partition(";")[0].lower()
                    found[name] = await _run_large_in_thread(
                        len(body), bodies.value_of_part, body, kind, part.filename or "", inputs[name]
                    )
            return found
        finally:
            await form.close()

    def feed_of(self, found: Mapping[str, Any]) -> dict[Any, Any]:
        """Values by the inputs of the graph."""
        return {self.ports.inputs[name].data: value for name, value in found.items()}

    async def fed(self, feed: dict[Any, Any], seconds: float, size: int, *, streams: bool) -> Any:
        """Feed the graph: a future, or a stream of results.

        Raises:
            Problem: 429 where it has no room, 503 where it has ended.
        """
        call = self._graph.stream if streams else self._graph.submit
        try:
            if size >= _LARGE:
                return await asyncio.to_thread(call, feed, deadline=seconds, wait=False)
            return call(feed, deadline=seconds, wait=False)
        except QueueFull as error:
            raise self._too_many(error.message) from None
        except DfException as error:
            if error.error_code == FAILED:
                raise Problem(503, error.message, headers={"Retry-After": "5"}) from None
            raise Problem(422, error.message) from None
        except RecursionError:
            raise Problem(422, "an input is nested too deeply") from None

    def answered(self, status: int, seconds: float) -> None:
        """Count an answer."""
        self.figures.add(status, seconds)
        if status == 200 or (status >= 500 and status != 503):  # what is refused takes no time of the graph
            self._pace.add(time.monotonic())


class _Answer(Response):
    """Reads a request, feeds the graph, and sends the answer; gives up when the client has gone."""

    def __init__(self, service: Service, request: Request) -> None:
        self._service = service
        self._request = request
        self._began = time.monotonic()
        self._accept = accepted(request.headers.get("accept", ""))
        self._seconds = 0.0
        self._problem_of = functools.partial(_problem_of, most=service._limits.seconds)
        self.background = None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer, as an ASGI application."""
        service, status, send = self._service, _GONE, _with_write_limit(send)
        is_in = False
        try:
            try:
                service.admit()
                is_in = True
                self._seconds = service.deadline_of(self._request)
                self._form = self._form_of_answer()  # refused before the model runs
                status = await self._run(receive, send)
            except Problem as problem:
                status = problem.status
                await send_whole(send, problem.status, PROBLEM, problem.body(), problem.headers)
        except (_ClientGone, ClientDisconnect, TimeoutError):
            status = _GONE  # the server closes a connection whose answer is not complete
        finally:
            service.figures.ongoing -= is_in
            service.answered(status, time.monotonic() - self._began)

    def _seconds_left(self) -> float:
        return self._seconds - (time.monotonic() - self._began)

    async def _run(self, receive: Receive, send: Send) -> int:
        try:
            async with asyncio.timeout(self._seconds_left()):
                found, media_type, size = await self._service.inputs_of(self._request)
        except TimeoutError:
            raise Problem(408, f"the body has not come within {self._seconds:g} s") from None
        streams = self._service.ports.is_stream
        form = self._form or (bodies.SAFETENSORS if bodies.is_safetensors(media_type) else "application/json")
        feed = self._service.feed_of(found)
        result = await self._service.fed(feed, max(0.001, self._seconds_left()), size, streams=streams)
        if not streams:
            return await self._answer_one(asyncio.wrap_future(result), form, receive, send)
        watch = asyncio.ensure_future(_wait_until_gone(receive))
        try:
            return await self._stream(result, form, watch, send)
        finally:
            watch.cancel()

    def _form_of_answer(self) -> str:
        """Media type of the answer; `BYTES` for bytes of any type, empty for the type of the request's body.

        Raises:
            Problem: 406: the client takes none that there is.
        """
        ports = self._service.ports
        if ports.is_stream:
            offers = [_EVENTS, "application/json"]
        else:
            offers = ["application/json", bodies.SAFETENSORS, *([BYTES] if ports.may_be_bytes else []), _EVENTS]
        for wanted in self._accept:
            if not ports.is_stream and wanted in ("*/*", "application/*"):
                return ""
            for offer in offers:
                if (
                    fits(offer, wanted)
                    or (offer == bodies.SAFETENSORS and bodies.is_safetensors(wanted))
                    or (offer == BYTES and may_be(wanted))
                ):
                    return offer
        raise Problem(406, f"there is no answer of type {', '.join(self._accept)}", f"accept {', '.join(offers)}")

    # One result

    async def _answer_one(self, future: asyncio.Future[list[Any]], form: str, receive: Receive, send: Send) -> int:
        watch: list[asyncio.Future[None]] = []

        def look() -> None:
            """Cancel the input, which stages leave out then, when the client goes."""
            watch.append(asyncio.ensure_future(_wait_until_gone(receive)))
            watch[0].add_done_callback(lambda _: future.cancel())

        timer = asyncio.get_running_loop().call_later(_PATIENCE, look)  # most answers are there before
        try:
            found = await future
        except BaseException as error:  # a stage may have raised SystemExit, which must not end the server
            if future.done() and not future.cancelled():
                raise self._problem_of(error, self._seconds) from None
            if watch and watch[0].done():
                raise _ClientGone from None
            future.cancel()
            raise
        finally:
            timer.cancel()
            for each in watch:
                each.cancel()
        if form == _EVENTS:
            body = _event("result", bodies.json_of_values(found, self._service.ports)) + _event("end", b"{}")
        else:
            body = await _run_large_in_thread(size_of(found), self._encoded, found, form)
        if form == BYTES:
            form = self._type_of(body)
        await send_whole(send, 200, form, body)
        return 200

    def _encoded(self, found: list[Any], form: str) -> bytes:
        if form == "application/json":
            return bodies.json_of_values(found, self._service.ports)
        if bodies.is_safetensors(form):
            return bodies.safetensors_of_values(found, self._service.ports)
        if len(found) == 1 and isinstance(found[0], bytes | bytearray | memoryview):
            return bytes(found[0])
        raise Problem(
            406, f"the result is not bytes, so there is no answer of type {', '.join(self._accept)}",
            "accept application/json",
        )  # fmt: skip

    def _type_of(self, body: bytes) -> str:
        """Media type of bytes by their content: the client must not choose what a browser makes of them.

        Raises:
            Problem: 406: the client does not accept it.
        """
        found = type_of(body)
        for wanted in self._accept:
            for name in (found, BYTES):
                if fits(name, wanted):
                    return name
        raise Problem(
            406, f"the result is {found}, and {', '.join(self._accept)} is accepted", f"accept {found}, or {BYTES}"
        )

    # Several results

    async def _stream(self, stream: ResultStream, form: str, watch: asyncio.Future[None], send: Send) -> int:
        results = _items(stream, watch, lambda error: self._problem_of(error, self._seconds))
        try:
            if form != _EVENTS:
                rows = [dict(zip(self._service.ports.outputs, each, strict=True)) async for each in results if each]
                await send_whole(send, 200, form, bodies.json_of({"results": rows}))
                return 200
            first = await anext(results, None)  # an error before the first result is the status of the answer
            data = b"" if first is None else self._event_of(first)
            headers = {"Content-Type": _EVENTS, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
            await send_start(send, 200, headers)
            try:
                while data:
                    await _write(send, data, more=True)
                    data = b""
                    async for each in results:
                        data = self._event_of(each)
                        break
            except Problem as problem:
                await _write(send, _event("error", problem.body()), more=False)
                return problem.status
            await _write(send, _event("end", b"{}"), more=False)
            return 200
        finally:
            await results.aclose()
            stream.cancel()  # no effect on one that has ended

    def _event_of(self, found: list[Any] | None) -> bytes:
        if found is None:
            return b": keep-alive\n\n"
        return _event("result", bodies.json_of_values(found, self._service.ports))


class _ClientGone(Exception):  # noqa: N818 - no error
    """The client has closed its connection."""


async def _wait_until_gone(receive: Receive) -> None:
    """Wait until the client closes its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _items(
    stream: ResultStream, watch: asyncio.Future[None], problem_of: Callable[[BaseException], Problem]
) -> AsyncGenerator[list[Any] | None]:
    """Iterate over the results, with None after a while without one.

    Raises:
        _ClientGone: the client has closed its connection.
        Problem: the input has failed.
    """
    loop, news = asyncio.get_running_loop(), asyncio.Event()

    def tell() -> None:
        try:
            loop.call_soon_threadsafe(news.set)
        except RuntimeError:
            pass  # the loop has ended

    watch.add_done_callback(lambda _: news.set())
    stream.listen(tell)
    is_first = True
    while True:
        news.clear()
        try:
            while (found := stream.take()) is not None:
                is_first = False
                yield found
        except StopIteration:
            return
        except GeneratorExit:
            raise
        except BaseException as error:
            raise problem_of(error) from None
        if watch.done():
            raise _ClientGone
        try:
            await asyncio.wait_for(news.wait(), None if is_first else _KEEP_ALIVE)
        except TimeoutError:
            yield None


def _problem_of(error: BaseException, seconds: float, most: float) -> Problem:
    """The answer for an input that has failed.

    An exception of the user's with a `status_code` from 400 to 499, such as FastAPI's HTTPException, is the client's
    fault; any other is the service's.

    Args:
        seconds: that the request might take.
        most: of `Limits`.
    """
    if isinstance(error, DeadlineExceeded):
        do = f"send it with a longer ?timeout=, at most {most:g}" if seconds < most else _LONGER
        return Problem(504, f"{error}; the request has a deadline of {seconds:g} s", do)
    if isinstance(error, Cancelled):
        return Problem(504, error.message)
    status = getattr(error, "status_code", 500)
    if isinstance(status, int) and 400 <= status <= 499:
        detail = getattr(error, "detail", "") or str(error)
        return Problem(status, detail if isinstance(detail, str) else repr(detail))
    if isinstance(error, DfException) and error.error_code == FAILED:
        return Problem(503, error.message, headers={"Retry-After": "5"})
    return Problem(500, _text(error), stage=_stage(error))


def _stage(error: BaseException) -> str | None:
    """Name of the stage that raised an error, from the note that `convert.failure_error` gives it."""
    for note in getattr(error, "__notes__", ()):
        first = note.partition(":")[0]
        if first.startswith("raised in stage "):
            return str(first.removeprefix("raised in stage ").rpartition(" for input ")[0])
    return None


def _text(error: BaseException | None) -> str:
    if isinstance(error, DfException):
        return str(error.message)
    return f"{type(error).__name__}: {error}"


# Bodies


def _too_large(limit: int) -> Problem:
    return Problem(413, f"the body has more than {limit} bytes", "send less, or start the service with --max-body")


async def _run_large_in_thread(size: int, function: Callable[..., Any], *args: Any) -> Any:
    """Call a function, in another thread where it takes long."""
    return await asyncio.to_thread(function, *args) if size >= _LARGE else function(*args)


def _event(name: str, data: bytes) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data)


def _with_write_limit(send: Send) -> Send:
    """Give up on a client that does not read a large part of its answer, and forbid browsers to guess its type."""

    async def send_some(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"].append((b"x-content-type-options", b"nosniff"))
        is_small = len(message.get("body", b"")) < 65536
        await (send(message) if is_small else asyncio.wait_for(send(message), _WRITE))

    return send_some


async def _write(send: Send, body: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def _on_http_error(request: Request, error: HTTPException) -> Response:
    problem = Problem(error.status_code, str(error.detail))
    return Response(problem.body(), error.status_code, error.headers, PROBLEM)


class _AnswerRate:
    """How fast requests are answered while there are any, for Retry-After."""

    def __init__(self) -> None:
        self._interval = 0.0
        self._last = 0.0

    def begin(self, now: float) -> None:
        """Leave out the idle time until now."""
        self._last = now

    def add(self, now: float) -> None:
        """Count an answer."""
        interval = min(now - self._last, 60.0)
        self._interval += (0.05 if self._interval else 1.0) * (interval - self._interval)
        self._last = now

    def seconds_for(self, requests: int) -> int:
        """Whole seconds until this number of requests is answered: 1 to 60."""
        return min(60, max(1, math.ceil(requests * self._interval)))

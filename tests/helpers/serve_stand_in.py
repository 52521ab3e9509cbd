"""A graph without processes, for tests of the HTTP application. Not a test."""

import asyncio
import contextlib
from concurrent.futures import Future

import httpx

from toprope.flow.data_type import DT_FLOAT, TensorDesc
from toprope.flow.futures import QueueFull, ResultStream
from toprope.flow.graph.nodes import FlowData, FlowNode, plan
from toprope.flow.service import Limits, Service
from toprope.flow.stage.spec import StageFunction, StageSpec

PAIRS = TensorDesc(DT_FLOAT, [-1, 2])


class Point:
    """A process point that never runs."""

    def __init__(self, kind, outputs=1, inputs=1, generates=False):
        self.functions = (StageFunction("run", tuple(range(inputs)), tuple(range(outputs)), generates=generates),)
        self.kind = kind

    def stage_spec(self):
        return StageSpec("", self.kind, b"", self.functions)


def make_plan(kind="npu", outputs=1, schema=PAIRS, inputs=("x",), generates=False):
    """A plan of one stage; its inputs are named, its node is called `y`."""
    data = []
    for name in inputs:
        each = FlowData.__new__(FlowData)
        each.name, each.schema = name, schema
        data.append(each)
    node = FlowNode(len(data), outputs)
    node.alias = "y"
    node.add_process_point(Point(kind, outputs, len(data), generates))
    made = node(*data)
    return plan(list(made) if outputs > 1 else [made])


class StandIn:
    """Answers with `function(values by name)`: values, an exception, a Future, or a list of results of a stream."""

    name = "stand-in"
    error = None
    restarts = 0

    def __init__(self, made, function):
        self.plan = made
        self._function = function
        self.room = True
        self.fed = []
        self.streams = []

    def start(self):
        pass

    def submit(self, feed, *, deadline, wait):
        assert not wait
        if not self.room:
            raise QueueFull
        named = {each.name: value for each, value in feed.items()}
        self.fed.append((named, deadline))
        found = self._function(named)
        if isinstance(found, Future):
            return found
        future = Future()
        if isinstance(found, BaseException):
            future.set_exception(found)
        else:
            future.set_result(found)
        return future

    def stream(self, feed, *, deadline, wait):
        found = self._function({each.name: value for each, value in feed.items()})
        stream = ResultStream()
        self.streams.append(stream)
        for each in found if isinstance(found, list) else [found]:
            if isinstance(each, BaseException):
                stream.end(each)
            elif each is not None:
                stream.put(each)
        if found[-1:] != [None]:
            stream.end()
        return stream

    def metrics(self):
        return []

    def stage_metrics(self):
        return []


def served(graph, **limits):
    """A service of a graph."""
    return Service(graph, Limits(**limits))


def talk(service, conversation):
    """Run `conversation(client)` against a service, without a network."""

    async def run():
        transport = httpx.ASGITransport(service.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
            return await conversation(client)

    return asyncio.run(run())


def ask(service, **request):
    """One POST to /predict."""

    async def conversation(client):
        return await client.post("/predict", **request)

    return talk(service, conversation)


@contextlib.contextmanager
def ongoing(service, count):
    """As if this number of requests were ongoing."""
    service.figures.ongoing += count
    try:
        yield
    finally:
        service.figures.ongoing -= count

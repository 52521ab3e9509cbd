"""Graphs of plain functions for tests of the running half of toprope.flow. Not a test."""

import contextlib
import glob
import os
import time
from dataclasses import dataclass, field, replace

from toprope.flow.executor.runner import Runner
from toprope.flow.graph.nodes import FlowData, FlowNode, plan
from toprope.flow.stage.spec import (
    EMPTY,
    PICKLED,
    TORCH,
    Head,
    Message,
    RunOptions,
    StageFunction,
    StageObject,
    StageSpec,
)
from toprope.functions.transport.serialization import dumps


def data(name):
    """An input of a graph."""
    found = FlowData.__new__(FlowData)
    found.name, found.schema = name, None
    return found


def wrap(value):
    """As `npu_model` has it: tensors are messages of their own."""
    if value is None:
        return EMPTY, None
    return (TORCH if type(value).__module__.startswith("torch") and hasattr(value, "device") else PICKLED), value


@dataclass
class Point:
    """A process point of one function, or of several."""

    functions: object
    inputs: int = 1
    outputs: int = 1
    kind: str = "python"
    make: object = None  # called in the stage's process: what the functions are
    options: dict = field(default_factory=dict)
    stream: bool = False
    choice: tuple = ()

    def stage_spec(self):
        function, make = self.functions, self.make

        def code(context):
            found = make(context) if make is not None else function
            return StageObject(found if isinstance(found, dict) else {"run": found}, wrap=wrap)

        names = self.options.get("split")
        split = names or (
            StageFunction("run", tuple(range(self.inputs)), tuple(range(self.outputs)), self.stream, self.choice),
        )
        others = {name: value for name, value in self.options.items() if name != "split"}
        return StageSpec("", self.kind, dumps(code), split, **others)


def node(point, *inputs, name=None, **attrs):
    """A node that runs a point, wired; its outputs."""
    made = FlowNode(point.inputs, point.outputs, name)
    made.add_process_point(point)
    for key, value in attrs.items():
        made.set_attr(key, value)
    return made(*inputs)


def chain(*functions, kind="python", **attrs):
    """The plan of a chain."""
    out = data("x")
    for place, function in enumerate(functions):
        point = function if isinstance(function, Point) else Point(function, kind=kind)
        out = node(point, out, name=f"s{place + 1}", **attrs)
    return plan([out])


@contextlib.contextmanager
def running(graph, **options):
    """A runner; at the end its processes are gone, and its folder."""
    runner = Runner(graph, replace(RunOptions(), **options))
    runner.start()
    pids, folder = runner.pids(), runner._folder
    try:
        yield runner
    finally:
        pids = {**pids, **runner.pids()}
        runner.close()
        assert not folder.exists()
    until = time.monotonic() + (0 if runner._is_local else 60)  # Ray ends processes a moment later
    while left := [pid for pid in pids.values() if os.path.exists(f"/proc/{pid}")]:
        assert time.monotonic() < until, left
        time.sleep(0.05)


def feed(runner, *values, timeout=10_000, **head):
    """Feed one value for each input; the code."""
    messages = {place: Message(*wrap(value), Head(**head)) for place, value in enumerate(values)}
    return runner.feed(messages, timeout)


def fetch(runner, places=None, timeout=20_000, **more):
    """The values of a result where there is one, and the code."""
    found = runner.fetch(places, timeout, **more)
    values = [each.payload for each in found.messages]
    return (values[0] if len(values) == 1 else values), found.code


def left_behind():
    """What lies in shared memory."""
    return set(glob.glob(f"/dev/shm/toprope-{os.getuid()}-{os.getpid()}-*"))

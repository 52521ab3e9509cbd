"""Generated programs make the same calls before and after the port, on a CUDA that records its calls.

The measure of "class P edits keep the meaning on CUDA", for programs that nobody wrote.
"""

import importlib.util
import pathlib
import sys
import types
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from toprope.port.engine import port

TEXT = pathlib.Path(__file__).resolve().parents[2] / "src" / "toprope" / "device" / "_portable_runtime.py"
NAME = "portable_under_test"


def runtime():
    """The runtime, loaded once more: it chooses its device at its first question."""
    spec = importlib.util.spec_from_file_location(NAME, TEXT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def device(what):
    if what is None:
        return "cuda"
    return f"cuda:{what}" if isinstance(what, int) else str(torch.device(what))


class World:
    """A CUDA with four devices, and what a program finds there. All that happens is in `log`."""

    def __init__(self):
        self.log = []

    def says(self, name, answer=None):
        def call(*given, **named):
            self.log.append((name, [device(each) for each in (*given, *named.values())]))
            return answer

        return call

    def context(self, index):
        self.log.append(("enter", device(index)))
        world = self

        class Context:
            def __enter__(self):
                return self

            def __exit__(self, *error):
                world.log.append(("leave", device(index)))

        return Context()

    def names(self):
        world = self

        class Tensor:
            def cuda(self, device_=None, non_blocking=False, **named):
                world.log.append(("move", device(named.get("device", device_)), non_blocking))
                return self

            def to(self, target=None, non_blocking=False, **named):
                world.log.append(("move", device(named.get("device", target)), non_blocking))
                return self

        def tick(value):
            world.log.append(("tick", value))
            return value

        own = types.SimpleNamespace(
            synchronize=lambda: world.log.append("own synchronize"), device_count=lambda: 99, cuda=None
        )
        own.cuda = own
        return {"x": Tensor(), "tick": tick, "log": lambda *what: world.log.append(what), "own": own}

    def cuda(self):
        return mock.patch.multiple(
            "torch.cuda",
            is_available=lambda: True,
            device_count=lambda: 4,
            current_device=self.says("current_device", 2),
            synchronize=self.says("synchronize"),
            set_device=self.says("set_device"),
            empty_cache=self.says("empty_cache"),
            memory_allocated=self.says("memory_allocated", 7),
            max_memory_allocated=self.says("max_memory_allocated", 8),
            get_device_capability=self.says("get_device_capability", (9, 0)),
            manual_seed_all=lambda seed: self.log.append(("seed", seed)),
            device=self.context,
        )


def run(program, names, module):
    with mock.patch.dict(sys.modules, {NAME: module}):
        exec(compile(program, "<program>", "exec"), names)


IMPORTS = [
    ("import torch", "torch", "torch.cuda"),
    ("import torch as t", "t", "t.cuda"),
    ("import torch\nfrom torch import cuda", "torch", "cuda"),
    ("import torch\nfrom torch import cuda as c", "torch", "c"),
    ("import torch, torch.cuda as tc", "torch", "tc"),
    ("import torch\nimport torch.cuda as tc", "torch", "tc"),
    ("import torch\nT = torch.cuda", "torch", "T"),
    ('"""Doc."""\nfrom __future__ import annotations\nimport torch', "torch", "torch.cuda"),
    ("import torch\nif True:\n    from torch import cuda as c", "torch", "c"),
]
NUMBERS = ["0", "3", "tick(1)", "(tick(0) + 1)", "{C}.current_device()", "[2, 1][tick(1)]", "({C}.device_count() - 1)"]
STATEMENTS = [
    "x.cuda()",
    "x.cuda({i})",
    "x.cuda({i}, True)",
    "y = x.cuda(device={i}, non_blocking=bool(tick(1))).cuda()",
    "x.cuda(\n    {i},  # which\n    non_blocking=True)",
    "x.to('cuda'), x.to(device='cuda:1', non_blocking=True), x.to(2)",
    "x.to('cuda:%d' % {i}, non_blocking=True)",
    "x.to(f'cuda:{{{i}}}')",
    'x.to("cuda:{{}}".format({i}))',
    "x.to('cuda:' + str({i}))",
    "log(str({T}.device('cuda')), str({T}.device('cuda', {i})), str({T}.device(f'cuda:{{{i}}}')))",
    "log(str({T}.device('cuda' if {C}.is_available() else 'cpu')))",
    "log(str({T}.device(('cuda:' + str({i})) if {C}.is_available() and tick(1) else 'cpu')))",
    "device = 'cuda:1' if {C}.is_available() else 'cpu'\nlog(device)\nx.to(device)",
    "where = f'cuda:{{{i}}}'\nx.to(where)\nlog(where)",
    "{C}.set_device({i}); {C}.synchronize(); {C}.empty_cache()",
    "log({C}.device_count(), {C}.is_available(), {C}.memory_allocated({i}), {C}.max_memory_allocated())",
    "with {C}.device({i}):\n    {C}.synchronize({i})",
    "{C}.manual_seed_all({i})",
    "log({C}.get_device_capability() >= (8, 0))",
    "log([str({T}.device('cuda:' + str(k))) for k in range({C}.device_count())])",
    "log(f'on {{{C}.device_count()}} of cuda:{{tick(1)}} {{{{}}}}')",
    "log(sorted({{'cuda': 1, 'cuda:0': 2}}), 'cuda:0 is fast', 'x_cuda.cu')",
    "move = lambda tensor: tensor.cuda({i})\nmove(x)",
    "def f(cuda, c=own, tc=own, T=own, torch=own):\n    cuda.synchronize(), c.synchronize()\n"
    "    log(tc.cuda.device_count(), torch.cuda.device_count())\nf(own)",
    "def g(tensor, device='cuda:2'):\n    return tensor.to(device, non_blocking=True)\ng(x), g(x, 'cuda:0')",
    "class Graph:\n    cuda = 'cuda'\n    def gpu(self):\n        return self.cuda\nlog(Graph().gpu(), Graph.cuda)",
    "if (count := {C}.device_count()) > 1:\n    log(count)",
    "sync = {C}.synchronize\nsync()",
    "x.to('cuda' if tick(0) else 'cpu' if tick(1) else 'cuda')",
]

places = st.tuples(st.sampled_from(STATEMENTS), st.sampled_from(NUMBERS), st.booleans())


@st.composite
def programs(draw):
    begin, torch_name, cuda_name = draw(st.sampled_from(IMPORTS))
    lines = [begin]
    for number, (statement, index, inside) in enumerate(draw(st.lists(places, min_size=1, max_size=6))):
        i = index.format(C=cuda_name)
        body = statement.format(T=torch_name, C=cuda_name, i=i)
        if inside:
            body = f"def part_{number}():\n" + "\n".join(f"    {line}" for line in body.split("\n"))
            body += f"\npart_{number}()"
        lines.append(body)
    return "\n".join(lines) + "\n"


@given(programs())
def test_the_same_happens_before_and_after(program):
    done = port(program.encode(), runtime=NAME)
    assert done.skipped == ""
    assert port(done.after, runtime=NAME).after == done.after
    before, after = World(), World()
    with before.cuda():
        run(program, before.names(), None)
    with after.cuda():
        run(done.after, after.names(), runtime())
    assert after.log == before.log


@given(programs())
def test_afterwards_it_runs_without_any_cuda(program):
    done = port(program.encode(), runtime=NAME)
    world = World()
    run(done.after, world.names(), runtime())
    moved = {each[1] for each in world.log if each[0] == "move"}
    if not any(not finding.converted for finding in done.findings):
        assert moved <= {"cpu"}


@pytest.mark.parametrize("statement", STATEMENTS)
def test_every_statement_is_concerned_or_a_look_alike(statement):
    program = "import torch\n" + statement.format(T="torch", C="torch.cuda", i="tick(1)") + "\n"
    done = port(program.encode(), runtime=NAME)
    look_alike = any(each in statement for each in ("class Graph", "sorted(", "def f(cuda"))
    assert done.changed != look_alike

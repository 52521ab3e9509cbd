"""Stages for the tests of users' troubles with pipelines, importable in their processes. Not a test."""

import os
import signal
import threading
import time

import numpy as np
import torch

from toprope import flow as df
from toprope.flow.udf import flow_func as ff

ONE = {"num_cpus": 1}
"""As many threads as a stage computes with: several stages have the same cores."""

# On a card


@df.npu_model(resources=ONE)
def stamp(x):
    """What came, and the number of the card that this runs on."""
    return torch.cat([x, torch.full((1,), float(x.device.index or 0), device=x.device)])


@df.npu_model(resources=ONE)
def fleeting(x):
    """Lets go of what it sends at once, and writes over what it can get of the card's memory."""
    kept = torch.cat([x, x[-1:]])
    result = kept * 1
    del kept
    torch.empty_like(result).fill_(7)
    return result


@df.npu_model(resources=ONE)
def late(x):
    """Looks at it when its sender is long at something else."""
    if x.numel() < 100:
        time.sleep(0.02)
    assert x.device.type != "cpu"
    return x


@df.npu_model
class Shared(torch.nn.Module):
    """Two methods of one model: its weights are made once."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3 << 20))

    @df.method()
    def forward(self, x):
        return x * self.weight[:2]

    @df.method()
    def head(self, x):
        return torch.tensor([float(self.weight.data_ptr()), float(os.getpid())], dtype=torch.float64, device=x.device)


# On the host


@df.pyflow
def picky(x):
    """What goes wrong is told by what it is given."""
    if not isinstance(x, str):
        return x
    if x == "raise":
        raise ZeroDivisionError("the user's own words")
    if x == "exit":
        os._exit(3)
    if x == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if x == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if x == "hang":
        time.sleep(3600)
    return x


@df.pyflow
def where_it_lies(x):
    """The file that a large array lies in, beside it."""
    if not isinstance(x, tuple):
        x = (x,)
    if not isinstance(x[0], np.ndarray):
        return x[0]
    address, found = x[0].__array_interface__["data"][0], ""
    with open("/proc/self/maps") as maps:
        for line in maps:
            first, last = (int(each, 16) for each in line.split()[0].split("-"))
            if first <= address < last:
                found = line.split()[-1]
    return (*x, found, x[0].flags.owndata)


@df.pyflow
def nested(x):
    """A nest of tensors on a card, of sizes that nobody knew before."""
    return {"parts": [torch.arange(float(n), device="npu:0") for n in range(1, x + 1)], "count": x}


@df.pyflow
def sums(x):
    assert all(each.device.type == "npu" for each in x["parts"])
    return ([each.sum().item() for each in x["parts"]], x["count"])


@df.pyflow
def slow(x):
    time.sleep(0.03)
    return x


@df.pyflow
def starts_others(x):
    """Has used the card, and starts a graph on it."""
    kept = torch.ones(4, device="npu:0")
    df.init({})
    data = df.FlowData()
    with df.FlowGraph([late.fnode()(stamp.fnode()(data))]) as graph:
        assert graph.feed({data: x}) == 0
        (got,), code = graph.fetch(timeout=30_000)
        shared = [each.shared for each in graph.metrics()]
    return (got.tolist(), code, shared, kept.sum().item())


# Streams


@df.pyflow
def letters(text):
    """One by one; it ends when there is a file `.go`, and says so in another."""
    yield from text
    while not os.path.exists(os.environ["FLOW_THREADS"] + ".go"):
        time.sleep(0.005)
    with open(os.environ["FLOW_THREADS"], "a") as file:
        file.write("done\n")


@df.pyflow(stream_input="Queue")
def pairs(letters):
    """A stream made of a stream: each call takes two, and sends three."""
    first, second = letters.get(), letters.get()
    yield first
    yield second
    yield first + second


@df.pyflow
def flood(count):
    """Writes down how far it is, in a file."""
    with open(os.environ["FLOW_THREADS"] + ".flood", "a") as file:
        for number in range(count):
            file.write("x")
            file.flush()
            yield np.full(10_000, number)


# Branches


@df.pyflow(num_returns=2, choice_output=lambda value: value is not None)
def choose(x):
    """Small ones leave early, the others go deeper."""
    return (x, None) if x < 10 else (None, x)


@df.pyflow
def deeper(x):
    assert x >= 10
    return x * 100


class Either:
    """One output for what comes by either way."""

    @ff.proc_wrapper("i0,o0")
    def early(self, run_context, messages):
        return run_context.set_output(0, messages[0])

    @ff.proc_wrapper("i1,o0")
    def deep(self, run_context, messages):
        return run_context.set_output(0, messages[0])


@df.pyflow
def plus_one(x):
    return x + 1


@df.pyflow
def join(a, b):
    return a, b


@df.pyflow
def three(x):
    for number in range(3):
        yield x, number


@df.pyflow
class Bound:
    """Its state belongs to the thread of its constructor."""

    def __init__(self):
        self._local = threading.local()
        self._local.seed = 42

    @df.method()
    def seeded(self, x):
        return x + self._local.seed


@df.pyflow
def waits(x):
    time.sleep(0.3)
    return x


@df.pyflow
def adds_in_place(tensor):
    array = tensor.numpy()
    try:
        array += 1
    except ValueError:
        return "read-only"
    return array[0]


@df.npu_model
def adds_in_place_on_the_device(tensor):
    return tensor.add_(1)


@df.pyflow
def reads_late(tensor):
    time.sleep(0.5)
    return tensor.numpy()[0]


@df.pyflow
def adds_to_an_array(array):
    array += 1
    return array


@df.pyflow
def reads_an_array_late(array):
    time.sleep(0.5)
    return array.sum()

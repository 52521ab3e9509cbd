"""Stages for tests of the dataflow API, importable in their processes. Not a test."""

import os
import queue
import time

import numpy as np
import torch
import torch.nn.functional as F

from toprope import flow as df
from toprope.flow.udf import flow_func as ff

FLOAT = df.DT_FLOAT


def crop(x):
    return x[..., 128:640, 128:640]


def shrink(x):
    return F.interpolate(x, size=(256, 256), mode="bilinear")


def normal(x):
    return (x - 0.5) / 0.5


def grow(x):
    return F.interpolate(x * 0.5 + 0.5, size=(512, 512), mode="bilinear")


def eager(x):
    return grow(normal(shrink(crop(x))))


@df.npu_model(optimize_level=1)
class FakeModel1(torch.nn.Module):
    @df.method()
    def forward(self, image):
        return shrink(image)


@df.npu_model(optimize_level=1, input_descs=[df.TensorDesc(FLOAT, [1, 3, 768, 768])])
class FakeModel2(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = self.std = 0.5

    @df.method()
    def forward(self, image):
        return (image - self.mean) / self.std


@df.npu_model(optimize_level=2, input_descs=[df.TensorDesc(FLOAT, [1, 3, 256, 256])])
class FakeModel2Sunk(torch.nn.Module):
    def __init__(self, mean):
        super().__init__()
        self.mean, self.std, self.pid = mean, 0.5, os.getpid()

    @df.method()
    def forward(self, image):
        assert os.getpid() == self.pid  # nothing of this runs in a stage
        return (image - self.mean) / self.std


@df.npu_model(optimize_level=2, input_descs=[df.TensorDesc(FLOAT, [-1, 3])])
class AnyBatch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)
        torch.nn.init.ones_(self.linear.weight)
        torch.nn.init.zeros_(self.linear.bias)

    @df.method()
    def forward(self, x):
        return self.linear(x)


@df.npu_model
class Weighted(torch.nn.Module):
    """Several methods, and weights that are made on the host."""

    def __init__(self, factor):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor(float(factor)))

    @df.method()
    def forward(self, x):
        return x * self.factor

    @df.method(num_returns=2)
    def both(self, x, y):
        return x + y, x - y


@df.npu_model
def preprocess(image):
    return crop(image)


@df.npu_model()
def postprocess(image):
    return grow(image)


@df.npu_model(num_returns=2)
def wrong(x):
    """What it returns goes wrong by what it is given."""
    kind = int(x.sum().item())
    return {0: [x, x], 1: (x, x, x), 2: (x, x.cpu() if x.device.type != "cpu" else 5), 3: x}.get(kind, (x, x))


@df.pyflow
def echo(x):
    return x


@df.pyflow
class Actor:
    def __init__(self, offset):
        self.offset, self.made_in = offset, os.getpid()

    @df.method()
    def zeta(self, a):
        return (a, self.made_in, os.getpid())

    @df.method(num_returns=2)
    def alpha(self, a, b):
        return a + self.offset, b


@df.pyflow(stream_input="Queue")
def two_and_one(a, b):
    for call in (a.put, a.put_nowait):
        try:
            call(1)
        except NotImplementedError:
            continue
        raise AssertionError("put")
    first = a.get(), a.get()
    try:
        a.get(timeout=-1)
    except ValueError:
        return (*first, b.get())


@df.pyflow(stream_input="Queue")
def drained(a):
    """What lies there, and whether it was empty then."""
    found = [a.get()]
    try:
        while True:
            found.append(a.get(timeout=200))
    except queue.Empty:
        pass
    try:
        a.get_nowait()
    except queue.Empty:
        return (found, a.empty(), a.qsize())


@df.pyflow
def five(x):
    for number in range(5):
        yield x * 10 + number


@df.pyflow(num_returns=2, choice_output=lambda value: value is not None)
def even_or_odd(x):
    return (x, None) if x % 2 == 0 else (None, x)


@df.pyflow
def slow(x):
    time.sleep(0.02)
    return x


@df.pyflow
def very_slow(x):
    time.sleep(0.4)
    return x


@df.pyflow
def where(x):
    time.sleep(0.005)
    return (x, df.get_running_instance_id(), df.get_running_instance_num(), df.get_running_device_id())


@df.pyflow
def pair(a, b):
    return (a, b)


@df.pyflow
def picky(x):
    if x == 3:
        raise KeyError("no three")
    return x * 2


def hook():
    os.environ["FLOW_HOOK"] = "ran"


class NeedsHook:
    def __setstate__(self, state):
        self.seen = os.environ.get("FLOW_HOOK")

    def __getstate__(self):
        return {"x": 1}


@df.npu_model(env_hook_func=hook, visible_device_enable=True, resources={"num_cpus": 2, "memory": 100, "num_npus": 1})
class Hooked(torch.nn.Module):
    def __init__(self, needs):
        super().__init__()
        self.needs = needs

    @df.method()
    def forward(self, x):
        assert self.needs.seen == "ran"
        mask = os.environ.get("ASCEND_RT_VISIBLE_DEVICES", "")
        return torch.tensor([float(mask or -1), float(df.get_running_device_id())], device=x.device)


class Registered:
    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return type(other) is Registered and other.value == self.value

    __hash__ = None


def to_bytes(thing):
    return str(thing.value).encode()


def from_bytes(raw):
    return Registered(int(bytes(raw)))


# Functions that see messages


class Relay:
    """Passes on, and gives up an input that is told to it."""

    @ff.proc_wrapper("i0,o0")
    def relay(self, run_context, messages):
        caught = run_context.get_exception()
        if caught[0]:
            with open(os.environ["FLOW_CAUGHT"], "a") as file:
                file.write(f"{caught[1]} {caught[2]} {run_context.get_exception()[0]}\n")
            return ff.FLOW_FUNC_SUCCESS
        assert bytes(run_context.get_user_data(11)) in (b"hello world", bytes(11))
        return run_context.set_output(0, messages[0])


class Raises(Relay):
    @ff.proc_wrapper("i0,o0")
    def relay(self, run_context, messages):
        if messages and int(messages[0].get_tensor().numpy()) == 3:
            return run_context.raise_exception(9900001, 7)
        return run_context.set_output(0, messages[0])


class Ports:
    """Two functions of one node: numbers of outputs are the node's, in both of them."""

    @ff.proc_wrapper("i0,o0")
    def first(self, run_context, messages):
        codes = [run_context.set_output(each, np.array([each])) for each in (1, 2, 3)]
        return run_context.set_output(0, np.array(codes))

    @ff.proc_wrapper("i1,o1,o2")
    def second(self, run_context, messages):
        code = run_context.set_output(0, np.array([0]))
        assert run_context.set_output(1, None) == ff.FLOW_FUNC_SUCCESS  # nothing is sent
        run_context.set_output(1, np.array([code]))
        config = ff.BalanceConfig(1, 1)
        assert run_context.set_multi_outputs(0, [np.array([9])], config) == ff.FLOW_FUNC_ERR_PARAM_INVALID
        return run_context.set_output(2, np.array([2]))


class Bare:
    """Its function is named by `FlowFuncRegister` alone."""

    def run(self, run_context, messages):
        return run_context.set_output(0, messages[0])


def plain(x):
    return x


def copies(x):
    return x, x

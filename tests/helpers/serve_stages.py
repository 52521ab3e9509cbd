"""Stages for tests of services. Not a test."""

import asyncio
import os
import sys
import time

import torch

from toprope import flow as df


@df.npu_model(batch=8, wait="50ms")
def rows(x):
    """Doubles rows; a negative number fails, and 100 is given the number of rows of the call."""
    if (x < 0).any():
        raise ValueError("negative")
    return torch.where(x == 100, torch.full_like(x, x.shape[0] if x.ndim else 1), x * 2)


@df.npu_model(batch=8, wait="50ms")
def total(x):
    """One number for all rows: a batch cannot be split."""
    return x.sum()


@df.npu_model(batch=4, wait="20ms", num_returns=2)
def both(x, y):
    return x + y, x - y


@df.pyflow(batch=4, wait="50ms")
def lists(values):
    """Tells the size of the batch to each; 5 fails by itself, 6 fails the call."""
    if 6 in values and len(values) == 1:
        raise KeyError("six")
    if 6 in values:
        raise KeyError("six and others")
    return [ValueError("no five") if each == 5 else (each, len(values)) for each in values]


@df.pyflow(batch=4, wait="200ms")
def leaves(values):
    """A text that names an exception raises it, for the whole call."""
    for kind in (SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit):
        if kind.__name__ in values:
            raise kind(3)
    return values


@df.pyflow
class StartsOnce:
    """The constructor fails where the file is there already."""

    def __init__(self, path):
        with open(path, "x"):
            pass

    @df.method()
    def run(self, value):
        os.kill(os.getpid(), 9)


@df.pyflow
def quits(value):
    sys.exit(value)


@df.npu_model
class Starts:
    """A model whose constructor takes long, or raises."""

    def __init__(self, seconds, error=None):
        time.sleep(seconds)
        if error is not None:
            raise error

    @df.method()
    def run(self, x):
        return x


@df.pyflow(batch=2)
def wrong(values):
    return values[:-1]


@df.pyflow(instances=2)
class Slow:
    def __init__(self, seconds=0.0):
        self.seconds = seconds

    @df.method()
    def run(self, value):
        time.sleep(self.seconds)
        if value == "die":
            os.kill(os.getpid(), 9)
        return {"value": value, "pid": os.getpid(), "instance": df.get_running_instance_id()}


@df.pyflow
def words(count):
    """Several results; 7 fails in the middle, 9 kills the process in the middle."""
    for number in range(count):
        if count == 7 and number == 2:
            raise KeyError("seven")
        if count == 9 and number == 2:
            time.sleep(0.2)  # the first ones are out
            os.kill(os.getpid(), 9)
        yield number


@df.pyflow
def forever(path):
    """Results until nobody wants them; then the file is written."""
    try:
        number = 0
        while True:
            yield number
            number += 1
            time.sleep(0.005)
    finally:
        with open(path, "w") as file:
            file.write(str(number))


@df.pyflow
def frail(value):
    if value == 2:
        time.sleep(0.2)  # the first ones are out
        os.kill(os.getpid(), 9)
    return value


@df.pyflow
def stop(value):
    raise StopIteration(value)


@df.pyflow
def plus(value):
    return value + 100


@df.pyflow
def twice(value):
    yield value
    yield value


@df.pyflow(num_returns=2)
def pairs(count):
    for number in range(count):
        yield number, -number


@df.pyflow
def add(left, right):
    return left + right


@df.pyflow(choice_output=lambda value: value % 2 == 0)
def even(value):
    return value


@df.pyflow
def slow(value):
    """Sleeps; notes what it was called with."""
    path, seconds = value
    with open(path, "a") as file:
        file.write(f"{seconds}\n")
    time.sleep(seconds)
    return seconds


@df.npu_model()
def scale(x):
    return x * 0.5

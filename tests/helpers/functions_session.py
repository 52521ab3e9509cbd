"""A session on a pool of simulated cards for a test module, and what must be left of it: nothing. Not a test."""

import contextlib
import glob
import os
import time

from toprope import functions as yr


@contextlib.contextmanager
def session(cards: str = "910B4x2", **config):
    """`yr.init` with these cards; at the end nothing may be held, and nothing left behind."""
    before = {name: os.environ.get(name) for name in ("TOPROPE_SIM", "ASCEND_RT_VISIBLE_DEVICES")}
    ours = f"/dev/shm/toprope-{os.getuid()}-{os.getpid()}-*"
    memory = set(glob.glob(ours))
    os.environ["TOPROPE_SIM"] = cards
    os.environ.pop("ASCEND_RT_VISIBLE_DEVICES", None)
    try:
        yr.init(yr.Config(**{"num_cpus": 16, "recycle_time": 0.2, **config}))
        yield yr
        within(60, lambda: all(each["capacity"] == each["allocatable"] for each in yr.resources()))
    finally:
        yr.finalize()
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
    assert set(glob.glob(ours)) <= memory


def within(seconds, holds):
    """Wait until something holds; it must within so many seconds."""
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "it does not come to hold"
        time.sleep(0.01)


def free():
    """The free cards of the only node."""
    (node,) = yr.resources()
    return sum(amount for key, amount in node["allocatable"].items() if key.startswith("NPU/"))

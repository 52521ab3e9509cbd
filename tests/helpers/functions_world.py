"""Sessions with two simulated cards, and what runs in them. Not a test; test_functions_*.py use it."""

import contextlib
import importlib.util
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from toprope import functions as yr

BACKENDS = ["local", pytest.param("ray", marks=pytest.mark.soak)]
"""On Ray, which takes minutes for its many processes, `make soak` runs what is parametrised by them."""
CARDS = "910B4x2"
MODEL = "NPU/910B4"
ANY = "NPU/.+/count"
FOREIGN = ("ASCEND_", "CUDA_", "YR_NOSET_", "TOPROPE_S", "TOPROPE_D", "TOPROPE_R", "RAY_")


def skip_without(kind: str) -> None:
    if kind == "ray" and importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed")


@contextlib.contextmanager
def session(kind: str = "local", /, config: yr.Config | None = None, **variables: str) -> Iterator[None]:
    """A session on a machine with these variables; it leaves no process, no memory and no variable."""
    skip_without(kind)
    before = dict(os.environ)
    for name in list(os.environ):
        if name.startswith(FOREIGN):
            del os.environ[name]
    os.environ.update({"TOPROPE_SIM": CARDS, **variables})
    config = config or yr.Config(num_cpus=16, custom_resources={"ssd": 5})
    if kind == "ray":
        config.server_address, config.deployment_config = "ray", SimpleNamespace(datamem=200)
    try:
        yr.init(config)
        yield
    finally:
        yr.finalize()
        os.environ.clear()
        os.environ.update(before)
    assert leftovers() == []


def leftovers() -> list[str]:
    """What this process's sessions have left: shared memory, and children."""
    memory = [path.name for path in Path("/dev/shm").glob(f"toprope-{os.getuid()}-{os.getpid()}-*")]
    return memory + [f"process {pid}" for pid in workers()]


def children(pid: int) -> list[int]:
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def workers() -> list[int]:
    """Forkservers of this process, and their workers."""
    forkservers = [
        pid for pid in children(os.getpid()) if b"worker.forkserver" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    return [*forkservers, *(worker for pid in forkservers for worker in children(pid))]


def opt(cards: float = 0, **values: object) -> yr.InvokeOptions:
    """Options that ask for cards of any model."""
    asked = {ANY: cards} if cards else {}
    values.setdefault("custom_resources", asked)
    return yr.InvokeOptions(**values)  # type: ignore[arg-type]


def free_cards(key: str = MODEL) -> int:
    """Cards that nobody holds."""
    return int(sum(node["allocatable"].get(key, 0) for node in yr.resources()))


def until(holds, timeout: float = 10) -> bool:  # type: ignore[no-untyped-def]
    """Whether something comes to hold in time."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.02)
    return bool(holds())


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def hold(folder: str | Path) -> None:
    """Say by a file `begun` that this is reached, and go on when there is a file `go`."""
    Path(folder, "begun").touch()
    while not Path(folder, "go").exists():
        time.sleep(0.01)


@contextlib.contextmanager
def ended(*instances: yr.InstanceProxy) -> Iterator[None]:
    """Instances of a test, ended with it."""
    try:
        yield
    finally:
        for instance in instances:
            instance.terminate()


@yr.instance
class Thing:
    """What most tests ask things of."""

    def __init__(self, number=0, fail=""):
        self.number = number
        self.made = 1
        if fail:
            raise ValueError(fail)

    def add(self, more=1):
        self.number += more
        return self.number

    def getEnv(self):
        return f"ASCEND_RT_VISIBLE_DEVICES: {os.getenv('ASCEND_RT_VISIBLE_DEVICES')}"

    def env(self, *names):
        return [os.environ.get(name) for name in names]

    def pid(self):
        return os.getpid()

    def echo(self, value):
        return value

    def sleep(self, seconds):
        time.sleep(seconds)
        return seconds

    def hold(self, folder):
        hold(folder)

    def run(self, card=0):
        import torch

        tensor = torch.ones(3, 3).to(torch.device(f"npu:{card}"))
        return str(tensor.device), torch.npu.device_count()

    def fail(self, text):
        raise ValueError(text)

    def items(self, count, fail=""):
        yield from range(count)
        if fail:
            raise ValueError(fail)

    def spawn(self):
        """Children of every kind: in the worker's session, in one of their own, and without a parent."""
        import subprocess

        plain = subprocess.Popen(["sleep", "600"])
        own = subprocess.Popen(["sleep", "600"], start_new_session=True)
        script = "sleep 600 >/dev/null 2>&1 & echo $!"
        orphan = subprocess.run(["setsid", "sh", "-c", script], stdout=subprocess.PIPE, text=True, check=True).stdout
        return [plain.pid, own.pid, int(orphan)]

    def leave(self):
        yr.exit()


@yr.invoke
def add(a, b=0):
    return a + b


@yr.invoke
def fail(text):
    raise ValueError(text)


@yr.invoke
def sleep(seconds, result=None):
    time.sleep(seconds)
    return result


@yr.invoke
def held(folder, result=None):
    hold(folder)
    return result


@yr.invoke
def env(*names):
    return [os.environ.get(name) for name in names]


@yr.invoke
def numbers(count, error=""):
    yield from range(count)
    if error:
        raise ValueError(error)

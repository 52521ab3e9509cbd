"""Worker process on Ray: its environment, setup and results.

Shared by `worker.actor` (instances) and `worker.task` (functions). `Setup` is made by the caller, in another process.
Masks are the vendors' and openYuanrong's, as in `local.masks`; RAY_EXPERIMENTAL_NOSET_... and the order of numbers are
Ray's. Tests: tests/functions/test_functions_ray_parts.py, and (slow) tests/functions/test_functions_ray.py.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from toprope.functions.exceptions import CODES, YRRuntimeError
from toprope.functions.local.masks import IDS, VISIBLE
from toprope.functions.ray.tensors import know_tensors

__all__ = ["MARK", "Setup", "granted_cards", "guard", "on_terminate", "prepare", "result_of", "split"]


MARK = "TOPROPE_INSTANCE"
"""Environment variable that marks the descendants of an instance."""


@dataclass(frozen=True)
class Setup:
    """Variables, folder and paths that a process on Ray gets before the user's code is loaded.

    Attributes:
        variables: of its environment.
        folder: where it runs; "" for where Ray starts it.
        path: what goes in front of sys.path.
    """

    variables: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""
    path: tuple[str, ...] = ()


def prepare(setup: Setup) -> None:
    """Set this process up: before anything of the user's is unpickled, for that may begin with the cards.

    Raises:
        YRRuntimeError: Ray has given cards that the node's own mask does not have.
    """
    os.environ.update(setup.variables)
    for vendor, ids in granted_cards().items():
        name = VISIBLE[vendor]
        if not ids:
            if os.environ.get(name) == "":
                del os.environ[name]  # an older Ray hides all cards from those who ask for none
            continue
        shown = ",".join(map(str, ids))
        if f"YR_NOSET_{name}" in os.environ:
            os.environ.pop(name, None)
        elif not os.environ.get(f"RAY_EXPERIMENTAL_NOSET_{name}"):
            _check(name, shown)
            os.environ[name] = shown
        os.environ[IDS[vendor]] = shown
    if setup.folder:
        os.chdir(setup.folder)
    sys.path[:0] = [each for each in setup.path if each not in sys.path]


def guard() -> None:
    """Make the descendants of this process end with it, however it ends."""
    value = f"{os.getpid()}-{uuid.uuid4().hex[:12]}"
    from toprope.functions.ray.worker import guard as program

    without = {name: each for name, each in os.environ.items() if name != MARK}
    os.environ[MARK] = value
    subprocess.run(
        [sys.executable, "-I", "-S", program.__file__, str(os.getpid()), f"{MARK}={value}"],
        env=without, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True, cwd="/", check=True,
    )  # fmt: skip


def granted_cards() -> dict[str, tuple[int | str, ...]]:
    """The numbers of the cards that Ray has given this process, by vendor, ascending, as the node's mask has them."""
    import ray

    told = ray.get_runtime_context().get_accelerator_ids()
    return {vendor: _sorted_ids(told.get(vendor, [])) for vendor in VISIBLE}


def _sorted_ids(ids: list[Any]) -> tuple[int | str, ...]:
    texts = [str(each) for each in ids]
    if all(each.isdecimal() for each in texts):
        return tuple(sorted(map(int, texts)))
    return tuple(sorted(texts))


def _check(name: str, shown: str) -> None:
    """The vendor's runtime would drop a card that is not there, and all behind it, without a word."""
    there = [each.strip() for each in _node_mask(name).split(",") if each.strip()]
    if there and not set(shown.split(",")) <= set(there):
        raise YRRuntimeError(
            f"cards {shown} cannot be shown to a process of a node with {name}={','.join(there)}",
            CODES["resource config"],
        )


def _node_mask(name: str) -> str:
    """The mask that the node's own process was started with."""
    try:
        with open(f"/proc/{os.getppid()}/environ", "rb") as file:
            for each in file.read().split(b"\0"):
                if each.startswith(f"{name}=".encode()):
                    return each.partition(b"=")[2].decode()
    except OSError:
        pass
    return ""


def on_terminate(hook: Callable[[], None]) -> None:
    """At SIGTERM: the hook, then what Ray does then. Only the main thread may ask for that."""
    if threading.current_thread() is not threading.main_thread():
        return
    before = signal.getsignal(signal.SIGTERM)

    def handle(number: int, frame: Any) -> None:
        hook()
        if callable(before):
            before(number, frame)
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, handle)


def result_of(result: Any, returns: int) -> Any:
    """Convert a function's result for Ray: to a tuple if the caller expects several values."""
    if inspect.iscoroutine(result):
        result = asyncio.run(result)
    if inspect.isasyncgen(result):
        result = asyncio.run(_collect_async(result))
    know_tensors()
    return result if returns == 1 else split(result, returns)


def split(result: Any, returns: int) -> Any:
    """Split a result into the expected number of values."""
    from toprope.functions.local.worker.worker_process import _split

    return tuple(_split(result, returns)) if returns else None


async def _collect_async(generator: Any) -> list[Any]:
    return [each async for each in generator]

"""Facade module: helpers of torch_npu's tests: equal tensors on the CPU and the card, conditions on chip and CANN.

Names and signatures are torch_npu's, for test files written for it; tests/compat/test_torch_npu_testing.py holds them.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import threading
import unittest
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any

import numpy as np
import torch

from .._facade import current_npu
from ..operators.formats import npu_format_cast
from ..utils._path_manager import PathManager

__all__: list[str] = []

Pair = tuple[torch.Tensor, torch.Tensor]

PERF_TEST_ENABLE = os.environ.get("PERF_TEST_ENABLE", "").upper() in ("ON", "1", "YES", "TRUE", "Y")
PERF_BASELINE_FILE = os.path.realpath(os.environ.get("PERF_BASELINE_FILE", "performance_baseline.json"))


@contextmanager
def freeze_rng_state() -> Iterator[None]:
    """Context after which the CPU's generator is as it was."""
    state = torch.get_rng_state()
    yield
    torch.set_rng_state(state)


def iter_indices(tensor: torch.Tensor) -> Iterable[Any]:
    """Indices of all elements: numbers for up to one dimension, else tuples."""
    if tensor.dim() == 0:
        return range(0)
    if tensor.dim() == 1:
        return range(tensor.size(0))
    return product(*map(range, tensor.size()))


def is_iterable(obj: object) -> bool:
    """Return True if `iter` takes the object."""
    try:
        iter(obj)  # type: ignore[call-overload]
    except TypeError:
        return False
    return True


def get_npu_device() -> str:
    """The card that tests use: "npu:0", or the number in SET_NPU_DEVICE."""
    return f"npu:{os.environ.get('SET_NPU_DEVICE', '0')}"


def set_npu_device() -> str:
    """Make the card of `get_npu_device` the current one, and return its name."""
    device = get_npu_device()
    current_npu().set_device(device)
    return device


def create_common_tensor(
    item: Sequence[Any], minValue: float, maxValue: float, device: str | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Random tensor on the CPU, and the same on the card.

    Args:
        item: numpy dtype, storage format (-1 for none), shape.
        minValue: lower end of the values.
        maxValue: upper end.
        device: the card; None for `get_npu_device`.
    """
    dtype, npu_format, shape = item[:3]
    host = torch.from_numpy(np.random.uniform(minValue, maxValue, shape).astype(dtype))
    return host, _on_card(host, npu_format, device)


def create_dtype_tensor(
    shape: Sequence[int],
    dtype: torch.dtype,
    npu_format: int = -1,
    min_value: float = -5,
    max_value: float = 5,
    no_zero: bool = False,
    device: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Random tensor on the CPU, and the same on the card.

    Args:
        shape: its shape.
        dtype: bool, float16 and float32; any other gives int32.
        npu_format: storage format of a floating tensor, -1 for none.
        min_value: lowest value.
        max_value: highest value.
        no_zero: put 1 in place of 0.
        device: the card; None for `get_npu_device`.
    """
    floating = {torch.half: np.float16, torch.float: np.float32}
    values: Any
    if dtype == torch.bool:
        values = np.random.randint(0, 2, size=shape).astype(bool)
    elif dtype in floating:
        values = np.random.uniform(min_value, max_value, shape).astype(floating[dtype])
    else:
        values = np.random.randint(int(min_value), int(max_value) + 1, size=shape).astype(np.int32)
    if no_zero:
        values = np.where(values != 0, values, np.ones_like(values))
    host = torch.from_numpy(values)
    return host, _on_card(host, npu_format if dtype in floating else -1, device)


def test_2args_broadcast(fn: Callable[..., torch.Tensor]) -> list[list[Any]]:
    """Results of a function of two tensors that broadcast, on the CPU and on the card, as numpy arrays.

    Args:
        fn: the function.
    """
    results = []
    for shape in ((1, 1, 1), (4, 5)):
        first = torch.from_numpy(np.random.rand(2, 3, 4, 5).astype(np.float32))
        second = torch.from_numpy(np.random.rand(*shape).astype(np.float32))
        here = fn(first, second).numpy()
        there = fn(first.to(get_npu_device()), second.to(get_npu_device())).cpu().numpy()
        results.append([here, there])
    return results


test_2args_broadcast.__test__ = False  # type: ignore[attr-defined]  # a helper, whatever pytest thinks of its name


def check_operators_in_prof(
    expected_operators: list[str], prof: Any, unexpected_operators: Sequence[str] | None = None
) -> bool | None:
    """Return True if a profile has all of some operators, which are taken out of the list, and none of others.

    Args:
        expected_operators: names of operators.
        prof: a profile, with `key_averages`.
        unexpected_operators: names of operators that must not be there.

    Returns:
        None, after a line on stdout, where the profile is empty.
    """
    entries = prof.key_averages()
    if not entries:
        print("The profile is empty.")
        return None
    for entry in entries:
        name = entry.key.replace("cached_", "")
        if name in (unexpected_operators or ()):
            return False
        if name in expected_operators:
            expected_operators.remove(name)
    return not expected_operators


class SkipIfNoLapack:
    """Decorator that skips a test where torch has no LAPACK."""

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a test."""
        return unittest.skipUnless(torch._C.has_lapack, "PyTorch compiled without Lapack")(fn)


class SkipIfNotRegistered:
    """Decorator that skips a test: it is about operators of caffe2, which torch no longer has."""

    def __call__(self, message: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Make the decorator."""
        return unittest.skip("Cannot import `caffe2.python.core`")


class SupportedDevices:
    """Decorator that skips a test on all chips but some.

    Args:
        supported_devices: beginnings of the chips' names: "Ascend910B", "Ascend910_93", "Ascend950".
    """

    def __init__(self, supported_devices: Sequence[str]) -> None:
        self.supported_devices = supported_devices

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a test."""

        @functools.wraps(fn)
        def wrapper(slf: Any, *args: Any, **kwargs: Any) -> Any:
            name = current_npu().get_device_name(0)
            name = name[: 12 if name.startswith("Ascend910_") else 9 if name.startswith("Ascend950") else 10]
            if name not in self.supported_devices:
                raise unittest.SkipTest(f"Only run on {self.supported_devices!r}, current device is {name}.")
            return fn(slf, *args, **kwargs)

        return wrapper


class SkipIfNotGteCANNVersion:
    """Decorator that skips a test on a CANN before some version, and so always on the simulated card.

    Args:
        base_version: the version, such as "8.3.RC1".
        module: part of CANN.
    """

    def __init__(self, base_version: str, module: str = "CANN") -> None:
        self.base_version = base_version
        self.module = module

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a test."""

        @functools.wraps(fn)
        def wrapper(slf: Any, *args: Any, **kwargs: Any) -> Any:
            utils = current_npu().utils
            if not utils._is_gte_cann_version(self.base_version, module=self.module):
                found = utils.get_cann_version(module=self.module)
                raise unittest.SkipTest(f"Only run on {self.base_version} or greater, current cann version is {found}.")
            return fn(slf, *args, **kwargs)

        return wrapper


class Baseline:
    """Seconds of tests, kept in a JSON file.

    Args:
        baselineFile: path of the file, which need not exist.
    """

    def __init__(self, baselineFile: str) -> None:
        self._baselineFile = baselineFile
        self._lock = threading.Lock()
        self._baseline: dict[str, float] = {}
        if os.path.exists(baselineFile):
            PathManager.check_directory_path_readable(baselineFile)
            with open(baselineFile, encoding="utf-8") as file:
                self._baseline = json.load(file)

    def get_baseline(self, resourceId: str) -> float | None:
        """Seconds of a test, None where it has none."""
        return self._baseline.get(resourceId)

    def set_baseline(self, resourceId: str, baseline: float) -> None:
        """Keep the seconds of a test."""
        with self._lock:
            self._baseline[resourceId] = baseline

    def save_baseline(self) -> None:
        """Write the file, for its owner alone."""
        with self._lock:
            handle = os.open(self._baselineFile, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(self._baseline, file)


PerfBaseline = Baseline(PERF_BASELINE_FILE)


def _create_scaling_models_optimizers(
    device: str = "npu",
    optimizer_ctor: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    optimizer_kwargs: dict[str, Any] | None = None,
) -> tuple[Any, ...]:
    """Two equal models, one to be trained with scaled losses and one without, and their optimizers."""

    def model() -> torch.nn.Sequential:
        return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)).to(device=device)

    control, scaling = model(), model()
    scaling.load_state_dict(control.state_dict())
    settings = {"lr": 1.0, **(optimizer_kwargs or {})}
    optimizers = [optimizer_ctor(each.parameters(), **settings) for each in (control, scaling)]
    return control, scaling, *optimizers


def _create_scaling_case(
    device: str = "npu",
    dtype: torch.dtype = torch.float,
    optimizer_ctor: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    optimizer_kwargs: dict[str, Any] | None = None,
) -> tuple[Any, ...]:
    """The models and optimizers, four batches of inputs and targets, a loss, and the step that is to overflow: 2."""
    made = _create_scaling_models_optimizers(device, optimizer_ctor, optimizer_kwargs)
    batches = [tuple(torch.randn(8, 8, dtype=dtype, device=device) for _ in range(2)) for _ in range(4)]
    return *made, batches, torch.nn.MSELoss().to(device), 2


@functools.lru_cache
def get_cycles_per_ms() -> float:
    """Cycles of `torch.npu._sleep` in a millisecond: the mean of ten measurements without the two ends."""
    npu = current_npu()

    def measure() -> float:
        start, end = npu.Event(enable_timing=True), npu.Event(enable_timing=True)
        start.record()
        npu._sleep(1000000)
        end.record()
        end.synchronize()
        return 1000000 / float(start.elapsed_time(end))

    return statistics.mean(sorted(measure() for _ in range(10))[2:8])


def _on_card(host: torch.Tensor, npu_format: int, device: str | None) -> torch.Tensor:
    tensor = host.to(device or get_npu_device())
    return tensor if npu_format == -1 else npu_format_cast(tensor, npu_format)

"""The CUDA backend without a GPU: each of its calls is one that torch.cuda has, with the arguments that it takes.

Holds `device.cuda`; the measure is the signatures of the installed torch.
"""

import contextlib
import types
from unittest import mock

import pytest
import torch

from toprope.device import Capabilities, Properties
from toprope.device.cuda import CudaDevice

ONE = torch.device("cuda", 1)
FIGURES = types.SimpleNamespace(name="H100", total_memory=80, multi_processor_count=132, major=9, minor=0)


@pytest.fixture
def gpu():
    return CudaDevice(1)


@contextlib.contextmanager
def replaced(name, answer=None):
    """torch.cuda's function as a stand-in that takes no other arguments than it does."""
    with mock.patch.object(torch.cuda, name, autospec=True) as call:
        call.return_value = answer
        yield call


@pytest.mark.parametrize(
    ("function", "answer", "ask", "arguments"),
    [
        ("set_device", None, lambda gpu: gpu.set_current(), (1,)),
        ("memory_allocated", 5, lambda gpu: gpu.memory_allocated(), (1,)),
        ("memory_reserved", 5, lambda gpu: gpu.memory_reserved(), (1,)),
        ("max_memory_allocated", 5, lambda gpu: gpu.max_memory_allocated(), (1,)),
        ("mem_get_info", (3, 4), lambda gpu: gpu.memory_info(), (1,)),
        ("empty_cache", None, lambda gpu: gpu.empty_cache(), ()),
        ("synchronize", None, lambda gpu: gpu.synchronize(), (1,)),
        ("current_stream", 5, lambda gpu: gpu.current_stream(), (1,)),
        ("default_stream", 5, lambda gpu: gpu.default_stream(), (1,)),
        ("stream", 5, lambda gpu: gpu.on_stream("a stream"), ("a stream",)),
        ("get_rng_state", 5, lambda gpu: gpu.rng_state(), (ONE,)),
        ("set_rng_state", None, lambda gpu: gpu.set_rng_state("a state"), ("a state", ONE)),
        ("device", 5, lambda gpu: gpu.as_current(), (1,)),
    ],
)
def test_a_call_reaches_torch(gpu, function, answer, ask, arguments):
    with replaced(function, answer) as call:
        assert ask(gpu) == answer
    call.assert_called_once_with(*arguments)


def test_streams_and_events(gpu):
    with replaced("Stream") as stream, replaced("Event") as event:
        gpu.stream(-1)
        gpu.event(timing=True)
    stream.assert_called_once_with(device=1, priority=-1)
    event.assert_called_once_with(enable_timing=True)


def test_a_seed_is_for_this_gpu(gpu):
    with replaced("device", mock.MagicMock()) as context, replaced("manual_seed") as seed:
        gpu.manual_seed(7)
    context.assert_called_once_with(1)
    seed.assert_called_once_with(7)


def test_a_seed_for_all_gpus_uses_none_of_them():
    with replaced("manual_seed_all") as seed:
        CudaDevice.manual_seed_all(7)
    seed.assert_called_once_with(7)


@pytest.mark.parametrize(("cuda", "hip"), [("12.8", None), (None, "6.4"), (None, None)])
def test_the_version_is_that_of_what_torch_is_built_for(gpu, monkeypatch, cuda, hip):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.version, "hip", hip)
    assert gpu.software_version() == (cuda or hip)


def test_what_it_is(gpu):
    with replaced("get_device_properties", FIGURES):
        assert gpu.properties() == Properties("H100", total_memory=80, cores=132, version=(9, 0))
        assert gpu.name == "H100"
    assert gpu.capabilities == Capabilities(
        separate_memory=True, streams=True, generators=True, pinned_memory=True, collectives="nccl"
    )


@pytest.mark.parametrize("used", [False, True])
def test_a_gpu_that_is_not_used_yet_is_left_so(gpu, used):
    with (
        replaced("is_initialized", used),
        replaced("current_device", 3) as index,
        replaced("reset_peak_memory_stats") as peak,
    ):
        assert CudaDevice.current_index() == (3 if used else 0)
        gpu.reset_peak_memory()
    assert index.called == peak.called == used


def test_figures_all_at_once(gpu):
    with (
        replaced("mem_get_info", (3, 4)),
        replaced("memory_allocated", 1),
        replaced("memory_reserved", 2),
        replaced("max_memory_allocated", 2),
    ):
        assert gpu.memory().as_dict() == {"allocated": 1, "reserved": 2, "peak": 2, "free": 3, "total": 4}

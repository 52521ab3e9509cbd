"""Kinds of accelerator without a file in toprope: usable where torch.accelerator serves them, else a clear error.

Holds `device.accelerator` and `device.kinds`.
"""

import types
from unittest import mock

import pytest
import torch

from toprope import device
from toprope.device import Availability, State
from toprope.device.accelerator import AcceleratorDevice
from toprope.device.cuda import CudaDevice
from toprope.device.kinds import device_class, kinds, look
from toprope.errors import DeviceNameError, DeviceNotInstalledError, UnsupportedError

FUNCTIONS = (
    "memory_allocated", "reset_peak_memory_stats", "empty_cache", "synchronize", "set_device_index", "device_index",
)  # fmt: skip


@pytest.fixture
def accelerator(monkeypatch):
    """torch.accelerator as on a machine with two Intel GPUs; its calls by name."""
    calls = mock.Mock()
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("xpu"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 1)
    monkeypatch.setattr(torch.accelerator, "get_memory_info", lambda index: (3 + index, 4 + index))
    monkeypatch.setattr(torch.xpu, "is_initialized", lambda: True)
    for name in FUNCTIONS:
        monkeypatch.setattr(torch.accelerator, name, getattr(calls, name))
    return calls


def test_the_accelerator_of_torch_is_a_kind_like_any_other(accelerator):
    assert kinds() == ("npu", "cuda", "xpu", "cpu")
    assert look("xpu") == Availability("xpu", State.WORKS, 2)
    xpu = device_class("xpu")
    assert (xpu.kind, xpu.title, xpu.current_index()) == ("xpu", "XPU", 1)
    card = xpu(1)
    assert (str(card), card.torch_device, card.memory_info()) == ("xpu:1", torch.device("xpu", 1), (4, 5))
    card.set_current()
    card.synchronize()
    card.empty_cache()
    card.reset_peak_memory()
    assert accelerator.mock_calls == [
        mock.call.set_device_index(1), mock.call.synchronize(1), mock.call.empty_cache(),
        mock.call.reset_peak_memory_stats(1),
    ]  # fmt: skip
    assert card.capabilities.collectives == "xccl"
    with pytest.raises(UnsupportedError, match="default stream of xpu:1"):
        card.default_stream()


def test_cuda_next_to_another_accelerator_is_asked_through_its_own_module(accelerator):
    held = mock.patch.object(torch.cuda, "memory_allocated", return_value=7)
    with mock.patch.object(torch.cuda, "synchronize") as waits, held:
        card = CudaDevice(1)
        card.synchronize()
        assert card.memory_allocated() == 7
    waits.assert_called_once_with(1)
    assert accelerator.mock_calls == []


def test_a_driver_that_fails_and_a_machine_without_a_card_are_answers(accelerator, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 0)
    assert (look("xpu").state, look("xpu").reason) == (State.NO_CARD, "no xpu is visible")
    monkeypatch.setattr(torch.accelerator, "device_count", mock.Mock(side_effect=RuntimeError("no driver")))
    assert (look("xpu").state, look("xpu").reason) == (
        State.BROKEN, "torch cannot count the devices: RuntimeError: no driver",
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["xpu", "mtia"])
def test_a_kind_that_this_torch_is_not_built_for_was_called_unknown(kind):
    with pytest.raises(DeviceNotInstalledError, match=rf"torch 2\S+ is built without {kind}"):
        device.get(kind)
    assert kinds() == ("npu", "cuda", "cpu")


def test_mps_is_not_supported_and_the_error_says_what_to_use():
    with pytest.raises(DeviceNameError, match="there is no kind of device 'mps'") as caught:
        device.get("mps")
    assert caught.value.do.endswith("torch itself has mps, to use without toprope.device: torch.device('mps')")
    with pytest.raises(DeviceNameError) as caught:
        device.get("tpu")
    assert "torch itself" not in caught.value.do


def test_pinned_memory_of_a_module_without_is_initialized_was_an_attribute_error(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("mps"))
    monkeypatch.setattr(torch, "get_device_module", lambda device: types.SimpleNamespace())
    device.get("cpu").empty_cache()


def test_it_is_a_whole_device():
    assert not AcceleratorDevice.__abstractmethods__

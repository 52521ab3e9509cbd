"""A dtype works when matmul, convolution and attention run and give the right numbers, on the device itself.

Holds `device.probing`.
"""

import pickle
import re

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from toprope import device
from toprope.device import probing
from toprope.errors import DeviceFullError, DeviceNameError, UnsupportedError, UsageError

HALVES = (torch.bfloat16, torch.float16, torch.float32)


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    monkeypatch.setattr(probing, "_known", {})


class Broken(TorchDispatchMode):
    """A device on which some operators fail for some dtypes, or compute nonsense."""

    def __init__(self, dtype, operator, error=None):
        super().__init__()
        self.dtype, self.operator, self.error, self.ran = dtype, operator, error, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        first, *others = result if isinstance(result, tuple) else (result,)
        if not isinstance(first, torch.Tensor) or first.dtype is not self.dtype or self.operator not in function.name():
            return result
        self.ran.append(function.name())
        if self.error is not None:
            raise self.error
        first = torch.full_like(first, float("nan"))
        return (first, *others) if isinstance(result, tuple) else first


@pytest.mark.parametrize(
    ("operator", "failed"),
    [("aten::mm", "matmul"), ("convolution", "convolution"), ("scaled_dot_product", "attention")],
)
def test_an_operator_that_fails_rules_the_dtype_out(operator, failed):
    error = RuntimeError("EZ1001: not implemented for\nDT_BFLOAT16")
    with Broken(torch.bfloat16, operator, error) as broken:
        assert device.get("cpu").best_dtype(*HALVES) in (torch.float16, torch.float32)
        found = device.get("cpu").probe(torch.bfloat16)
    assert broken.ran  # it was really tried
    assert (found.dtype, found.works, found.failed) == ("bfloat16", False, failed)
    assert found.reason == "EZ1001: not implemented for DT_BFLOAT16"


@pytest.mark.parametrize("operator", ["aten::mm", "convolution", "scaled_dot_product"])
def test_wrong_numbers_rule_the_dtype_out_too(operator):
    with Broken(torch.float16, operator):
        found = device.get("cpu").probe(torch.float16)
    assert not found.works
    assert found.reason.startswith("the result is nan, and not ")


def test_a_product_element_by_element_is_no_proof():
    """Where only matmul fails, a program would fail too: multiplying two tensors is not enough to look at."""
    with Broken(torch.bfloat16, "aten::mm", RuntimeError("no")):
        assert (torch.ones(2, dtype=torch.bfloat16) * 2).tolist() == [2, 2]
        assert device.get("cpu").best_dtype(torch.bfloat16, torch.float32) is torch.float32


def test_autocast_around_it_changes_nothing():
    with torch.autocast("cpu", dtype=torch.bfloat16), Broken(torch.bfloat16, "aten::mm", RuntimeError("no")) as broken:
        assert device.get("cpu").probe(torch.float32).works
        assert not device.get("cpu").probe(torch.bfloat16).works
    assert broken.ran == ["aten::mm"]


def test_running_out_of_memory_says_nothing_about_the_dtype():
    cpu = device.get("cpu")
    full = Broken(torch.float16, "aten::mm", torch.OutOfMemoryError("full"))
    with full, pytest.raises(DeviceFullError, match="cpu has no memory left to try float16 on it") as caught:
        cpu.probe(torch.float16)
    assert re.search(r"[\d.]+ GiB of [\d.]+ GiB free; this process holds [\d.]+ [MG]iB", caught.value.looked_at)
    assert device.is_out_of_memory(caught.value)
    assert device.is_out_of_memory(pickle.loads(pickle.dumps(caught.value)))  # without its cause
    assert cpu.probe(torch.float16).works  # and is not remembered


def test_each_dtype_is_tried_once(monkeypatch):
    tried = []
    matmul = probing.PROBES["matmul"]
    monkeypatch.setitem(probing.PROBES, "matmul", lambda *where: (tried.append(where[1]), matmul(*where))[1])
    cpu = device.get("cpu")
    for _ in range(3):
        cpu.best_dtype(*HALVES)
    assert tried == [torch.bfloat16] * 2  # a second time for the clock, and never again
    assert cpu.probe(torch.bfloat16).seconds > 0


def test_where_nothing_works_every_reason_is_reported():
    with Broken(torch.bfloat16, "aten::mm", RuntimeError("no")), pytest.raises(UnsupportedError) as caught:
        device.get("cpu").best_dtype(torch.bfloat16, torch.bool)
    assert caught.value.what == "cpu computes in none of bfloat16, bool."
    assert caught.value.looked_at.startswith("bfloat16: matmul: no; bool: ")


@pytest.mark.parametrize("ask", [lambda card: card.best_dtype("bfloat16"), lambda card: card.probe("float16")])
def test_the_name_of_a_dtype_was_said_not_to_work_on_the_device(ask):
    with pytest.raises(UsageError, match=r"'b?float16' is no torch.dtype"):
        ask(device.get("cpu"))


def test_why_bfloat16_is_not_chosen_on_the_cpu_could_not_be_seen():
    choice = device.get("cpu").choose_dtype()
    assert choice.dtype is device.best_dtype("cpu") is torch.float32
    assert choice.text == (
        "float32 on cpu (the first of float32, bfloat16, float16 that works; "
        "on most CPUs torch computes in shorter types more slowly)"
    )
    assert device.why_not(torch.bfloat16, "cpu") == f"on cpu, bfloat16 works, and best_dtype() is {choice.text}"
    assert device.why_not(torch.float32, "cpu") == ""


def test_a_dtype_that_fails_is_in_the_reasons():
    with Broken(torch.bfloat16, "aten::mm", RuntimeError("EZ1001")):
        choice = device.get("cpu").choose_dtype(*HALVES)
        assert device.why_not(torch.bfloat16, "cpu") == "on cpu, bfloat16 does not work: matmul: EZ1001"
    assert choice.dtype is torch.float16
    assert choice.text == (
        "float16 on cpu (the first of bfloat16, float16, float32 that works; bfloat16 does not work: matmul: EZ1001)"
    )
    assert device.best_dtype("cpu", torch.float16, torch.float32) is torch.float16


def test_why_there_is_no_device_in_one_line():
    assert device.why_not("cpu") == device.why_not(torch.device("cpu")) == ""
    assert device.why_not("cpu:3").startswith("there is no cpu:3, the program sees 1 device (cpu); ")
    with pytest.raises(DeviceNameError):
        device.why_not("tpu")

"""Public troubles of users that the simulated card shows, each named for its thread: one card machine of 910B3.

Holds all of sim against public issues; the thread is in each test's docstring. tests/sim/test_simulated.py runs this
module in a process with simulated cards.
"""

import os
import threading
import unittest
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_utils import TestCase

import toprope.sim

SIM = "910B3x2,hbm=1GiB"


def test_diffusers_10428_repeat_interleave_refuses_double() -> None:
    """https://github.com/huggingface/diffusers/issues/10428: Flux's positions are float64 unless told otherwise."""

    def rotary(dtype: torch.dtype) -> torch.Tensor:
        positions = torch.arange(4, device="npu", dtype=dtype)
        frequencies = torch.outer(positions, 1.0 / 10000 ** (torch.arange(0, 8, 2, device="npu", dtype=dtype) / 8))
        return frequencies.cos().repeat_interleave(2, dim=1).float()

    with pytest.raises(RuntimeError, match=r"EZ1001.*not implemented for DT_DOUBLE, should be in dtype support list"):
        rotary(torch.float64)
    assert rotary(torch.float32).shape == (4, 8)


def test_vllm_omni_4911_indexing_complex64_is_not_supported() -> None:
    """https://github.com/vllm-project/vllm-omni/issues/4911: Wan S2V indexes its complex frequencies."""
    frequencies = torch.polar(torch.ones(6, 4), torch.rand(6, 4)).npu()
    rows = torch.tensor([0, 2, 5], device="npu")
    with pytest.raises(RuntimeError, match=r"EZ1001.*not implemented for DT_COMPLEX64"):
        frequencies[rows]
    # what works on the card: the same rows of real and imaginary part
    parts = torch.view_as_real(frequencies)[rows]
    assert torch.equal(torch.view_as_complex(parts.cpu()), frequencies.cpu()[rows.cpu()])


def test_pytorch_61654_and_83817_what_passes_on_the_cpu_and_breaks_on_a_device_breaks_here() -> None:
    """https://github.com/pytorch/pytorch/issues/61654, https://github.com/pytorch/pytorch/issues/83817

    The classic mistakes of device code, none of which a test on the CPU can see.
    """

    class Positions(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.arange(x.shape[-1])  # not on x's device

    class Hidden(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.ones(3)  # neither parameter nor buffer: .to() leaves it where it is

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale

    for model in (Positions(), Hidden()):
        assert model(torch.ones(2, 3)).shape == (2, 3)
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            model.to("npu")(torch.ones(2, 3, device="npu"))
    with pytest.raises(TypeError, match="can't convert npu:0 device type tensor to numpy"):
        torch.ones(2, device="npu").numpy()
    with pytest.raises(RuntimeError, match="Expected a 'npu' device type for generator but found 'cpu'"):
        torch.randn(2, device="npu", generator=torch.Generator())


class MockDeviceSuite(TestCase):
    """A suite that is generic over devices, as a maker of a mock device has to make one."""

    __test__ = False  # its tests are made for a device first

    def test_gradients(self, device: str) -> None:
        torch.manual_seed(0)
        layer = torch.nn.Linear(5, 3)
        x = torch.randn(4, 5)
        layer(x).square().sum().backward()
        wanted = layer.weight.grad.clone()
        layer.zero_grad()
        layer.to(device)(x.to(device)).square().sum().backward()
        assert layer.weight.grad.device.type == torch.device(device).type
        torch.testing.assert_close(layer.weight.grad.cpu(), wanted)

    def test_factories(self, device: str) -> None:
        for make in (torch.zeros, torch.ones, torch.empty, torch.rand):
            assert make(2, device=device).device.type == torch.device(device).type


def test_torch_spyre_244_a_suite_for_a_mock_device_runs_on_this_one() -> None:
    """https://github.com/torch-spyre/torch-spyre/issues/244: every maker of a device builds a mock of his own.

    torch's own harness for such suites takes the simulated card for a device.
    """
    scope = {"MockDeviceSuite": MockDeviceSuite}
    instantiate_device_type_tests(MockDeviceSuite, scope, only_for="privateuse1")
    (made,) = scope.values()
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(made)
    assert sorted(case.id().rpartition(".")[2] for case in suite) == ["test_factories_npu", "test_gradients_npu"]
    result = unittest.TestResult()
    suite.run(result)
    assert (result.testsRun, result.failures, result.errors, result.skipped) == (2, [], [], [])


def test_llamafactory_5674_the_trace_tells_which_attention_ran() -> None:
    """https://github.com/hiyouga/LlamaFactory/issues/5674: "does sdpa really become FA? cannot tell from logs"."""
    q, k, v = (torch.randn(1, 2, 64, 16, device="npu") for _ in range(3))

    def operators() -> set[str]:
        with toprope.sim.trace() as recorded:
            scaled_dot_product_attention(q, k, v)
        return {record.name for record in recorded.trace.operators()}

    assert operators() == {"aten::scaled_dot_product_attention"}
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        by_parts = operators()
    assert {"aten::bmm", "aten::_softmax"} <= by_parts
    assert "aten::scaled_dot_product_attention" not in by_parts


def test_diffusers_14786_a_guard_that_asks_for_an_accelerator_and_not_for_a_name_sees_the_card() -> None:
    """https://github.com/huggingface/diffusers/pull/14786: a guard against offloading twice lists cuda and xpu."""
    model = torch.nn.Linear(2, 2).npu()
    accelerator = torch.accelerator.current_accelerator()
    assert torch.accelerator.is_available()
    assert accelerator is not None
    assert accelerator.type == next(model.parameters()).device.type == "npu"
    # twice there and back loses nothing, and the second offload frees what the first put there again
    wanted = model.weight.detach().cpu()
    before = torch.npu.memory_allocated()
    for _ in range(2):
        model.cpu()
        assert torch.npu.memory_allocated() < before
        model.npu()
    assert torch.equal(model.weight.cpu(), wanted)
    assert torch.npu.memory_allocated() == before


def test_vllm_omni_261_the_current_card_is_each_threads_own() -> None:
    """https://github.com/vllm-project/vllm-omni/issues/261: a web UI calls the model from a pool of threads.

    https://github.com/AUTOMATIC1111/stable-diffusion-webui/pull/14801: each of them needed a set_device.
    """
    torch.npu.set_device(1)

    def call() -> tuple[int, str]:
        return torch.npu.current_device(), str(torch.ones(1, device="npu").device)

    def call_with_device() -> tuple[int, str]:
        torch.npu.set_device(1)
        return call()

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(call).result() == (0, "npu:0")
        assert pool.submit(call_with_device).result() == (1, "npu:1")
        assert pool.submit(call).result() == (1, "npu:1")  # the thread keeps what it chose
    with ThreadPoolExecutor(1, initializer=torch.npu.set_device, initargs=(1,)) as pool:
        assert pool.submit(call).result() == (1, "npu:1")
    assert call() == (1, "npu:1")
    torch.npu.set_device(0)


def test_vllm_omni_5211_copies_of_a_hand_over_are_counted() -> None:
    """https://github.com/vllm-project/vllm-omni/issues/5211: every edge of a pipeline bounces through the host."""
    done = torch.ones(256, device="npu")

    def copies(hand_over) -> dict[str, int]:
        with toprope.sim.trace() as recorded:
            hand_over(done)
        acts = [record for record in recorded.records if record.act.startswith("copy")]
        return {act: sum(record.bytes for record in acts if record.act == act) for act in {a.act for a in acts}}

    assert copies(lambda t: t.cpu().npu() * 2) == {"copy from card": 1024, "copy to card": 1024}
    assert copies(lambda t: t * 2) == {}
    assert copies(lambda t: t.to("npu:1") * 2) == {"copy between cards": 1024}


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_vllm_ascend_4502_a_fork_after_any_use_cannot_use_the_card() -> None:
    """https://github.com/vllm-project/vllm-ascend/issues/4502: a call before the engine forks its workers."""
    assert threading.main_thread() is threading.current_thread()
    assert torch.npu.is_available()
    torch.npu.set_device(0)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = str(torch.ones(1, device="npu"))
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as stream:
        text = stream.read()
    assert os.waitpid(child, 0)[1] == 0
    assert text.startswith(
        "RuntimeError: Cannot re-initialize NPU in forked subprocess. To use NPU with multiprocessing, you must use the"
        " 'spawn' start method"
    )


def test_ascend_pytorch_67_a_mask_that_comes_too_late_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """https://github.com/Ascend/pytorch/issues/67: a mask set after the first use breaks a card with 507033.

    The simulated card keeps the cards that it had, and every number keeps its meaning.
    """
    first = torch.npu.get_device_properties(1).uuid
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "1")
    assert torch.npu.device_count() == 2
    assert torch.npu.get_device_properties(1).uuid == first
    assert torch.ones(1, device="npu:1").item() == 1
    # and who wants to see the vendor's failure asks for it
    with toprope.sim.faults.unhealthy(1, 507033), pytest.raises(RuntimeError, match="507033"):
        torch.ones(1, device="npu:1").item()

"""torch.compile with inductor: its C++ kernels run on the card's bytes."""

from pathlib import Path

import pytest
import torch

import toprope.sim

SIM = "910B3x2,refuse=off"
ENVIRONMENT = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}

# torch warns about itself while it compiles.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
    pytest.mark.filterwarnings("ignore:.*TypedStorage:UserWarning"),
]


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled anew each time, in this process: what is tried is the compiler, not the cache."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()


def test_dynamo_and_inductor_know_the_card() -> None:
    from torch._dynamo.device_interface import get_interface_for_device
    from torch._inductor.codegen.common import (
        get_scheduling_for_device,
        get_wrapper_codegen_for_device,
        init_backend_registration,
    )

    init_backend_registration()
    interface = get_interface_for_device("npu")
    assert (interface.is_available(), interface.device_count()) == (True, 2)
    assert get_scheduling_for_device("npu") is not None
    assert get_wrapper_codegen_for_device("npu") is not None


@pytest.mark.soak
@pytest.mark.usefixtures("own_cache")
def test_a_small_function_is_one_kernel_and_computes_the_same() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x.sin() + y * 2).relu().sum(-1)

    x, y = torch.randn(4, 33), torch.randn(33)
    compiled = torch.compile(function)
    on_card = (x.npu(), y.npu())
    result = compiled(*on_card)
    assert result.device == torch.device("npu:0")
    torch.testing.assert_close(result.cpu(), function(x, y))
    # its operators are fused into a kernel of inductor's, which is no operator of the card's
    with toprope.sim.trace() as recorded:
        compiled(*on_card)
    assert not {"aten::sin", "aten::add", "aten::relu", "aten::sum"} & {
        record.name for record in recorded.trace.operators()
    }


@pytest.mark.soak
@pytest.mark.usefixtures("own_cache")
def test_a_layer_on_another_card_than_the_current_one_learns_the_same() -> None:
    def step(device: str, backend: str | None) -> list[torch.Tensor]:
        torch.manual_seed(0)
        layer = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).to(device)
        call = layer if backend is None else torch.compile(layer, backend=backend)
        call(torch.ones(3, 8, device=device)).square().mean().backward()
        return [parameter.grad.cpu() for parameter in layer.parameters()]

    for compiled, plain in zip(step("npu:1", "inductor"), step("cpu", None), strict=True):
        torch.testing.assert_close(compiled, plain)

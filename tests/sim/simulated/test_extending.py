"""Extending torch for the card: operators of one's own, libraries, fake and meta tensors, modes.

Holds csrc/torch against the documented behaviour of torch.library. tests/sim/test_simulated.py runs this module in a
process with simulated cards.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from against_cpu import CARD, assert_same

SECOND = torch.device("npu:1")


@contextmanager
def library(name: str, *definitions: str) -> Iterator[torch.library.Library]:
    made = torch.library.Library(name, "FRAGMENT")
    try:
        for definition in definitions:
            made.define(definition)
        yield made
    finally:
        made._destroy()


def test_custom_op() -> None:
    @torch.library.custom_op("toprope_test::scaled", mutates_args=(), device_types="npu")
    def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
        return x * factor

    @scaled.register_fake
    def _(x: torch.Tensor, factor: float) -> torch.Tensor:
        return torch.empty_like(x)

    scaled.register_autograd(
        lambda ctx, gradient: (gradient * ctx.factor, None),
        setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1]),
    )
    x = torch.ones(2, device=CARD, requires_grad=True)
    result = scaled(x, 3.0)
    result.sum().backward()
    assert_same((result, x.grad), (torch.full((2,), 3.0), torch.full((2,), 3.0)))
    with pytest.raises(NotImplementedError, match="toprope_test::scaled"):
        scaled(torch.ones(2), 3.0)
    torch.library.opcheck(scaled, (torch.ones(2, device=CARD), 2.0))


def test_custom_op_with_a_kernel_for_each_device() -> None:
    @torch.library.custom_op("toprope_test::where_am_i", mutates_args=(), device_types="cpu")
    def where(x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(1)

    where.register_kernel("npu", lambda x: torch.ones(1, device=x.device))
    assert_same(where(torch.ones(2, device=CARD)), torch.ones(1))
    assert_close(where(torch.ones(2)), torch.zeros(1))


def test_custom_op_that_writes_in_place() -> None:
    @torch.library.custom_op("toprope_test::increase", mutates_args={"x"}, device_types="npu")
    def increase(x: torch.Tensor) -> None:
        x.add_(1)

    x = torch.zeros(3, device=CARD)
    increase(x[1:])
    assert_same(x, torch.tensor([0.0, 1, 1]))


def test_a_kernel_of_a_library() -> None:
    with library("toprope_test", "plus_one(Tensor x) -> Tensor") as made:
        made.impl("plus_one", lambda x: x + 1, "PrivateUse1")
        assert_same(torch.ops.toprope_test.plus_one(torch.ones(2, device=CARD)), torch.full((2,), 2.0))
        with pytest.raises(NotImplementedError, match="plus_one"):
            torch.ops.toprope_test.plus_one(torch.ones(2))


def test_an_operator_without_a_kernel_for_the_card_runs_the_cpus() -> None:
    with library("toprope_test", "host_only(Tensor x, Tensor[] more) -> (Tensor, Tensor[])") as made:
        devices = []

        def kernel(x: torch.Tensor, more: list[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
            devices.append(x.device.type)
            return x * 2, [t + 1 for t in more]

        made.impl("host_only", kernel, "CPU")
        one, more = torch.ops.toprope_test.host_only(torch.ones(2, device=CARD), [torch.zeros(1, device=CARD)])
        assert devices == ["cpu"]
        assert_same((one, more[0]), (torch.full((2,), 2.0), torch.ones(1)))


def test_an_operator_with_no_kernel_at_all_says_so() -> None:
    with (
        library("toprope_test", "nowhere(Tensor x) -> Tensor"),
        pytest.raises(NotImplementedError, match="toprope_test::nowhere"),
    ):
        torch.ops.toprope_test.nowhere(torch.ones(2, device=CARD))


def test_a_name_may_be_used_again_with_another_schema() -> None:
    for schema, arguments in (("again(Tensor x) -> Tensor", ()), ("again(Tensor x, Tensor y) -> Tensor", (1,))):
        with library("toprope_test", schema) as made:
            made.impl("again", lambda x, *rest: x + len(rest), "CPU")
            x = torch.zeros(1, device=CARD)
            rest = [torch.zeros(1, device=CARD) for _ in arguments]
            assert torch.ops.toprope_test.again(x, *rest).item() == len(arguments)


def test_a_composite_operator() -> None:
    with library("toprope_test", "twice(Tensor x) -> Tensor") as made:
        made.impl("twice", lambda x: x + x, "CompositeImplicitAutograd")
        x = torch.ones(2, device=CARD, requires_grad=True)
        torch.ops.toprope_test.twice(x).sum().backward()
        assert_same(x.grad, torch.full((2,), 2.0))


def test_triton_style_operators() -> None:
    @torch.library.triton_op("toprope_test::plain", mutates_args=())
    def plain(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    assert_same(plain(torch.zeros(2, device=CARD)), torch.zeros(2))


# ---- tensors without values


def test_fake_tensors() -> None:
    with FakeTensorMode():
        x = torch.empty(3, 4, device=SECOND)
        y = nn.functional.relu(x @ x.T).sum(0, keepdim=True)
        assert (y.device, y.shape) == (SECOND, (1, 3))
        assert torch.zeros(2).npu().device == CARD
        assert nn.Linear(4, 2, device=CARD)(torch.empty(5, 4, device=CARD)).shape == (5, 2)
        assert torch.empty(2, 3, 4, 4, device=CARD).permute(0, 2, 3, 1).stride() == (48, 4, 1, 16)
        with pytest.raises(RuntimeError, match="device"):
            x + torch.empty(3, 4)
    mode = FakeTensorMode()
    fake = mode.from_tensor(torch.ones(2, device=CARD))
    assert fake.device == CARD
    assert (fake + 1).device == CARD


def test_fake_tensors_take_no_memory() -> None:
    before = torch.npu.memory_allocated()
    with FakeTensorMode():
        huge = torch.empty(2**45, device=CARD)
        assert (huge * 2).shape == (2**45,)
    assert torch.npu.memory_allocated() == before


def test_meta_tensors_become_real() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    assert model[0].weight.is_meta
    model.to_empty(device=CARD)
    assert {t.device for t in model.state_dict().values()} == {CARD}
    for layer in model:
        layer.reset_parameters()
    assert torch.isfinite(model(torch.randn(4, 3, device=CARD))).all()
    assert torch.empty_like(torch.empty(2, 3, device="meta"), device=CARD).device == CARD
    assert torch.ones(2, device=CARD).to("meta").is_meta
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        torch.ones(2, device="meta").to(CARD)


# ---- seeing what runs


class Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.append(operator.name())
        return operator(*args, **(kwargs or {}))


def test_dispatch_modes() -> None:
    x = torch.ones(2, 2, device=CARD)
    with Recorder() as recorder:
        x.mm(x).relu_()
    assert recorder.names == ["aten::mm", "aten::relu_"]


class Logged(torch.Tensor):
    """A subclass that counts the functions called with it."""

    calls = 0

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        Logged.calls += 1
        return super().__torch_function__(function, types, args, kwargs or {})


def test_subclasses() -> None:
    tensor = torch.ones(2, device=CARD).as_subclass(Logged)
    result = tensor + 1
    assert isinstance(result, Logged)
    assert result.device == CARD
    assert Logged.calls >= 1
    assert_same(torch.ones(2).as_subclass(Logged).npu().as_subclass(torch.Tensor), torch.ones(2))


def test_graphs_are_traced() -> None:
    graph = make_fx(lambda x: torch.relu(x @ x).sum())(torch.ones(2, 2, device=CARD))
    assert "aten.mm" in graph.code
    assert_same(graph(torch.full((2, 2), 2.0, device=CARD)), torch.tensor(32.0))


def test_exported_programs_run_on_the_card() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).to(CARD).eval()
    x = torch.randn(2, 3, device=CARD)
    program = torch.export.export(model, (x,))
    assert_same(program.module()(x), model(x).detach().cpu())

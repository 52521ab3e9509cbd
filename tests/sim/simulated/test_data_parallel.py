"""nn.DataParallel over several cards, as toprope.compat.install() makes it run: the CPU's numbers and gradients.

Holds compat/data_parallel.py and parallel_import.py against the CPU's numbers and gradients.
tests/sim/test_simulated.py runs this module in a process with simulated cards.
"""

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import comm, data_parallel, parallel_apply, replicate

import toprope.compat


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    toprope.compat.install()
    yield
    toprope.compat.uninstall()


class Branches(nn.Module):
    """Takes and gives nested containers, one of them with whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, pair: tuple[Tensor, Tensor], *, scale: dict[str, Tensor], factor: float) -> dict[str, Any]:
        total = self.linear(pair[0] + pair[1]) * scale["by"] * factor
        return {"total": total, "more": (total.sum(1), [total > 0])}


def twins(module: nn.Module) -> tuple[nn.Module, nn.Module]:
    """The same module on the host and on the first card."""
    return module, copy.deepcopy(module).to("npu:0")


def close(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got.cpu(), expected, rtol=1e-5, atol=1e-6)


def same_gradients(module: nn.Module, on_host: nn.Module) -> None:
    for got, expected in zip(module.parameters(), on_host.parameters(), strict=True):
        assert got.grad is not None
        assert got.grad.device == torch.device("npu:0")
        close(got.grad, expected.grad)


@pytest.mark.parametrize("ids", [None, [0, 1], [0, 1, 2], [torch.device("npu:0"), torch.device("npu:3")]])
@pytest.mark.parametrize("where", ["cpu", "npu:0"])
@pytest.mark.parametrize("rows", [2, 7])
def test_forward_and_backward(ids: Any, where: str, rows: int) -> None:
    on_host, on_card = twins(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)))
    model = nn.DataParallel(on_card, device_ids=ids)
    x = torch.randn(rows, 8)
    y = model(x.to(where))
    assert (y.device, y.shape) == (torch.device("npu:0"), (rows, 4))
    close(y, on_host(x))
    y.square().mean().backward()
    on_host(x).square().mean().backward()
    same_gradients(on_card, on_host)


def test_training_gives_the_weights_of_one_device() -> None:
    on_host, on_card = twins(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)))
    model = nn.DataParallel(on_card, device_ids=[0, 1])
    optimizers = [torch.optim.AdamW(each.parameters(), lr=0.05) for each in (on_host, model)]
    for _ in range(5):
        x = torch.randn(10, 8)
        for each, optimizer in zip((on_host, model), optimizers, strict=True):
            optimizer.zero_grad()
            each(x).square().mean().backward()
            optimizer.step()
    for got, expected in zip(on_card.parameters(), on_host.parameters(), strict=True):
        torch.testing.assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-5)


def test_the_gradient_of_the_input() -> None:
    on_host, on_card = twins(nn.Linear(8, 4))
    for where in ("cpu", "npu:0", "npu:1"):
        x = torch.randn(5, 8)
        inputs = x.to(where).requires_grad_()
        x = x.requires_grad_()
        nn.DataParallel(on_card, device_ids=[0, 1])(inputs).square().sum().backward()
        on_host(x).square().sum().backward()
        assert inputs.grad is not None
        assert inputs.grad.device == torch.device(where)
        close(inputs.grad, x.grad)


def test_containers_keywords_and_outputs_elsewhere() -> None:
    on_host, on_card = twins(Branches())
    pair, by = (torch.randn(6, 8), torch.randn(6, 8)), torch.randn(6, 1)
    expected = on_host(pair, scale={"by": by}, factor=2.0)
    for target in (torch.device("npu:1"), 1, "cpu"):
        model = nn.DataParallel(on_card, device_ids=[0, 1], output_device=0)
        model.output_device = target
        got = model(pair, scale={"by": by}, factor=2.0)
        assert got["total"].device == torch.device("cpu" if target == "cpu" else "npu:1")
        close(got["total"], expected["total"])
        close(got["more"][0], expected["more"][0])
        assert torch.equal(got["more"][1][0].cpu(), expected["more"][1][0])


def test_scalars_become_a_vector() -> None:
    model = nn.DataParallel(Mean().to("npu:0"), device_ids=[0, 1])
    with pytest.warns(UserWarning, match="input tensors were scalars"):
        losses = model(torch.arange(8.0).reshape(4, 2))
    assert losses.tolist() == [1.5, 5.5]
    losses.mean().backward()
    assert model.module.weight.grad.item() == 3.5


class Mean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.weight).mean()


def test_buffers_of_the_first_card_are_updated() -> None:
    norm = nn.BatchNorm1d(4).to("npu:0")
    x = torch.randn(8, 4)
    nn.DataParallel(norm, device_ids=[0, 1])(x)
    alone = nn.BatchNorm1d(4)
    alone(x[:4])
    close(norm.running_mean, alone.running_mean)
    assert norm.num_batches_tracked.item() == 1


def test_without_gradients_and_in_evaluation() -> None:
    on_host, on_card = twins(nn.Sequential(nn.Linear(8, 4), nn.Dropout()))
    on_host.eval()
    model = nn.DataParallel(on_card, device_ids=[0, 1]).eval()
    x = torch.randn(4, 8)
    with torch.no_grad():
        close(model(x), on_host(x))


def test_autocast_reaches_every_card() -> None:
    model = nn.DataParallel(nn.Linear(8, 4).to("npu:0"), device_ids=[0, 1])
    with torch.autocast("npu", torch.bfloat16):
        assert model(torch.randn(4, 8)).dtype == torch.bfloat16
    assert model(torch.randn(4, 8)).dtype == torch.float32


def test_what_fails_on_one_card_is_raised() -> None:
    class Fails(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if x.get_device() == 1:
                raise KeyError("second")
            return super().forward(x)

    model = nn.DataParallel(Fails(8, 4).to("npu:0"), device_ids=[0, 1])
    with pytest.raises(KeyError, match="Caught KeyError in replica 1 on device 1"):
        model(torch.randn(4, 8))


def test_a_module_elsewhere_is_refused_by_torch() -> None:
    with pytest.raises(RuntimeError, match="module must have its parameters and buffers on device npu:0"):
        nn.DataParallel(nn.Linear(8, 4).to("npu:1"), device_ids=[0, 1])(torch.randn(2, 8))


def test_complex_weights() -> None:
    class Phase(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.tensor([1 + 2j, 3 - 1j]))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight

    on_host, on_card = twins(Phase())
    x = torch.randn(4, 2, dtype=torch.complex64)
    y = nn.DataParallel(on_card, device_ids=[0, 1])(x)
    close(y, on_host(x))
    y.abs().sum().backward()
    on_host(x).abs().sum().backward()
    same_gradients(on_card, on_host)


def test_the_functions_by_themselves() -> None:
    module = nn.Linear(8, 4).to("npu:0")
    x = torch.randn(6, 8)
    close(data_parallel(module, x.npu(), device_ids=[0, 1]), module.cpu()(x).detach())
    module.to("npu:0")
    copies = replicate(module, [0, 1])
    assert [copied.weight.device.index for copied in copies] == [0, 1]
    assert copies[0].weight.data_ptr() == module.weight.data_ptr()
    outputs = parallel_apply(copies, [x.to("npu:0"), x.to("npu:1")])
    close(outputs[1], outputs[0].cpu())


def test_torch_nn_parallel_comm() -> None:
    x = torch.arange(12.0).reshape(6, 2)
    for source in (x, x.npu()):
        assert [(each.device.index, each.tolist()) for each in comm.broadcast(source, [0, 2])] == [
            (0, x.tolist()), (2, x.tolist()),
        ]  # fmt: skip
        parts = comm.scatter(source, [1, 2], chunk_sizes=[4, 2])
        assert [(each.device.index, each.tolist()) for each in parts] == [(1, x[:4].tolist()), (2, x[4:].tolist())]
    assert comm.broadcast(x.to("npu:1"), [1])[0].device.index == 1
    assert len(comm.scatter(x, [0, 1, 2, 3])) == 3
    close(comm.gather(parts, destination="npu:1"), x)
    assert comm.gather(parts).device.index == 0
    assert comm.gather(parts, destination="cpu").device.type == "cpu"
    out = torch.empty(6, 2, device="npu:3")
    assert comm.gather(parts, out=out) is out
    close(out, x)
    targets = [torch.empty(3, 2, device="npu:0"), torch.empty(3, 2, device="npu:1")]
    comm.scatter(x, out=targets)
    close(targets[1], x[3:])
    comm.broadcast(x[:3], out=targets)
    close(targets[0], x[:3])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        close(comm.reduce_add([x.to("npu:0"), x.to("npu:1"), x.to("npu:2")], 1), 3 * x)
        (total, small) = comm.reduce_add_coalesced([[x.to(f"npu:{i}"), x[0].to(f"npu:{i}")] for i in (0, 1)], 0)
    close(total, 2 * x)
    close(small, 2 * x[0])


def test_coalesced_broadcast_keeps_order_types_and_own_versions() -> None:
    tensors = [torch.randn(3), torch.arange(4), torch.randn(2, 2), torch.ones(1, dtype=torch.int64)]
    on_card = [each.npu() for each in tensors]
    for buffer_size in (1, 10485760):
        here, there = comm.broadcast_coalesced(on_card, [0, 1], buffer_size)
        assert [each.data_ptr() for each in here] == [each.data_ptr() for each in on_card]
        for got, expected in zip(there, tensors, strict=True):
            assert got.device == torch.device("npu:1")
            assert torch.equal(got.cpu(), expected)
        there[0].add_(1)
        assert [each._version for each in there] == [1, 0, 0, 0]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: comm.broadcast(x), "Exactly one of 'devices' and 'out' must be specified"),
        (lambda x: comm.scatter(x, [0], out=[x]), "'devices' must not be specified when 'out' is specified"),
        (lambda x: comm.scatter(x, None, [2], out=[x]), "'chunk_sizes' must not be specified"),
        (lambda x: comm.gather([x], destination=0, out=x), "'destination' must not be specified"),
        (lambda x: comm.reduce_add([x, x], 1), "destination to be on the same GPU with one of the tensors"),
    ],
)
def test_torchs_own_errors(call: Any, words: str) -> None:
    with pytest.raises(RuntimeError, match=words):
        call(torch.ones(2).npu())


def test_sizes_have_to_agree() -> None:
    with pytest.raises(ValueError, match="input 1 has invalid size"):
        comm.reduce_add([torch.ones(2).npu(), torch.ones(3).to("npu:1")], 0)


def test_uninstalling_gives_torch_its_functions_back() -> None:
    assert hasattr(comm.scatter, "__toprope_wraps__")
    toprope.compat.uninstall()
    assert not hasattr(comm.scatter, "__toprope_wraps__")
    assert not hasattr(torch.nn.parallel.parallel_apply, "__toprope_wraps__")
    with pytest.raises(AttributeError, match="_scatter"):
        nn.DataParallel(nn.Linear(8, 4).to("npu:0"), device_ids=[0, 1])(torch.ones(2, 8))


def test_scatter_gather_and_broadcast_refuse_what_the_vendor_refuses() -> None:
    x = torch.randn(4, 4)
    out = list(comm.scatter(x, (0, 1)))
    refused = [
        (lambda: comm.scatter(x, ()), "Expected at least one device to scatter to"),
        (lambda: comm.scatter(x, (0, 1), (1, 2, 1)), "Expected devices and chunk_sizes to be of same length"),
        (lambda: comm.scatter(x, out=[]), "Expected at least one output tensor to scatter to"),
        (lambda: comm.scatter(x, out=[out[0].cpu(), out[1]]), "to be NPU tensors, but output tensor at index 0"),
        (lambda: comm.scatter(x, out=[out[0][None], out[1]]), "Output tensor at index 0 has incorrect shape"),
        (lambda: comm.scatter(x, out=[out[0][1:], out[1]]), "Total size for output tensors along scatter dim 0 does"),
        (lambda: comm.broadcast(x, out=[x.npu(0), x]), "to be NPU tensors, but output tensor at index 1"),
        (lambda: comm.broadcast(x, out=[x.npu(0), x.npu(1)[None]]), "same shape as the source .+ at index 1"),
        (lambda: comm.gather(()), "Expected at least one tensor to gather from"),
        (lambda: comm.gather((x, x.npu(1))), "Expected all input tensors to be NPU tensors, but tensor at index 0"),
        (lambda: comm.gather((x.npu(0), x.npu(1)[None])), "to have the same number of dimensions, but tensor at index"),
        (lambda: comm.gather((x.npu(0), x.npu(1)[:, 1:])), "Input tensor at index 1 has invalid shape"),
        (lambda: comm.gather((x.npu(0),), out=x.npu(1)[1:]), "Expected out tensor to have shape"),
    ]
    for call, text in refused:
        with pytest.raises(RuntimeError, match=text):
            call()


def test_broadcast_coalesced_takes_sparse_tensors() -> None:
    tensors = [torch.eye(3).to_sparse().npu(), torch.ones(2).npu()]
    copies = comm.broadcast_coalesced(tensors, (0, 1))
    assert copies[0][0] is tensors[0]
    assert [copy.device.index for copy in copies[1]] == [1, 1]
    assert torch.equal(copies[1][0].to_dense().cpu(), torch.eye(3))

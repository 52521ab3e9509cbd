"""Sparse tensors: what torch_npu has for them is there and computes as the CPU's, the rest is refused.

Holds csrc/torch/sparse.cpp against the CPU's results, and the vendor's test_sparse_coo.py. tests/sim/test_simulated.py
runs this module in a process with simulated cards.

The cases of the coordinate format are those of the vendor's test_sparse_coo.py.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from against_cpu import CARD, assert_same
from children import run

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled"),
    pytest.mark.filterwarnings("ignore:Sparse C.. tensor support is in beta state"),
    pytest.mark.filterwarnings("ignore:Device do not support double dtype now"),
]

UNARY = (
    "abs", "asinh", "asin", "atan", "atanh", "ceil", "deg2rad", "erfinv", "erf", "expm1", "floor", "frac", "log1p",
    "round", "rad2deg", "sign", "sgn", "sin", "sinh", "sqrt", "tan", "tanh", "trunc", "nan_to_num", "neg",
)  # fmt: skip
ALIKE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.relu,
    "signbit": torch.signbit,
    "isnan": torch.isnan,
    "isposinf": torch.isposinf,
    "threshold_backward": lambda t: torch.ops.aten.threshold_backward(t, t, 2),
    "broadcast": lambda t: torch._sparse_broadcast_to(t, [4, 4]),
    "cat": lambda t: torch.cat((t, t), 0),
    "clone": torch.clone,
    "div": lambda t: t / 2,
    "div rounded": lambda t: torch.div(t, 2, rounding_mode="floor"),
    "mul": lambda t: t * t,
    "mul by a number": lambda t: t * 3,
    "sub": lambda t: t - t,
    "add": lambda t: t + t,
    "pow": lambda t: t.coalesce() ** 2,
    "permute": lambda t: t.permute(1, 0),
    "transposed": lambda t: t.t(),
    "unsqueeze": lambda t: t.unsqueeze(0),
    "sum": lambda t: t.sum(),
    "sum of a dimension": lambda t: torch.sparse.sum(t, 0),
    "norm": lambda t: t.coalesce().norm(),
    "dense": lambda t: t.to_dense(),
    "coalesced": lambda t: t.coalesce(),
    "half": lambda t: t.to(torch.float16),
    "mask": lambda t: torch.ones(4, 4, device=t.device).sparse_mask(t.coalesce()),
}


def pair(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """The same tensor on the card and on the host."""
    indices, values = torch.tensor([[1, 2, 3, 2], [2, 2, 2, 3]]), torch.tensor([2, -2, 3, -4]).to(dtype)
    host = torch.sparse_coo_tensor(indices, values, (4, 4))
    return torch.sparse_coo_tensor(indices.to(CARD), values.to(CARD), (4, 4)), host


def assert_alike(card: torch.Tensor, host: torch.Tensor) -> None:
    assert (card.device, card.layout, card.dtype, card.shape) == (CARD, host.layout, host.dtype, host.shape)
    if host.layout == torch.strided:
        torch.testing.assert_close(card.cpu(), host, equal_nan=True)
        return
    assert card.is_coalesced() == host.is_coalesced()
    assert torch.equal(card._indices().cpu(), host._indices())
    torch.testing.assert_close(card._values().cpu(), host._values(), equal_nan=True)


def test_parts() -> None:
    card, host = pair()
    assert (card._nnz(), card.sparse_dim(), card.dense_dim(), card.is_coalesced()) == (4, 2, 0, False)
    assert card.is_sparse
    assert card.device == CARD
    assert_alike(card, host)
    card._coalesced_(True)
    assert card.is_coalesced()
    assert torch.equal(card.indices().cpu(), host._indices())
    assert "device='npu:0'" in repr(card)
    assert "layout=torch.sparse_coo" in repr(card)


@pytest.mark.parametrize("name", ALIKE)
def test_operators(name: str) -> None:
    card, host = pair()
    assert_alike(ALIKE[name](card), ALIKE[name](host))


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_unary_operators_in_place_and_into_another(name: str, dtype: torch.dtype) -> None:
    card, host = (each.coalesce() for each in pair(dtype))
    assert_alike(getattr(card, name)(), getattr(host, name)())
    out_card, out_host = (each.coalesce() for each in pair(dtype))
    assert getattr(torch, name)(card, out=out_card) is out_card
    getattr(torch, name)(host, out=out_host)
    assert_alike(out_card, out_host)
    assert getattr(card, f"{name}_")() is card
    assert_alike(card, getattr(host, f"{name}_")())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32])
@pytest.mark.parametrize("dense", [(), (2,), (3, 0)])
def test_equal_indices_are_joined(dtype: torch.dtype, dense: tuple[int, ...]) -> None:
    indices = torch.tensor([[9, 0, 0, 8, 1, 1, 2, 7, 2], [0, 3, 3, 3, 1, 1, 0, 0, 0]])
    values = torch.arange(1, 10).to(dtype).reshape(9, *[1] * len(dense)).expand(9, *dense)
    card = torch.sparse_coo_tensor(indices.to(CARD), values.to(CARD), (10, 4, *dense))
    assert_alike(card.coalesce(), torch.sparse_coo_tensor(indices, values, (10, 4, *dense)).coalesce())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_summed_in_float32(dtype: torch.dtype) -> None:
    values = torch.tensor([1.0] + [0.0004] * 50).to(dtype)
    card = torch.sparse_coo_tensor(torch.zeros(1, 51, dtype=torch.int64, device=CARD), values.to(CARD), (1,)).coalesce()
    assert card.dtype == dtype
    assert card.values().item() == values.float().sum().to(dtype).item() > 1


def test_sparse_and_dense_added() -> None:
    card, host = pair()
    dense = torch.randn(4, 4)
    assert_alike(dense.to(CARD) + card, dense + host)
    moved = dense.to(CARD)
    assert moved.add_(card, alpha=-0.5) is moved
    assert_alike(moved, dense.add(host, alpha=-0.5))
    with pytest.raises(RuntimeError, match=r"add\(sparse, dense\) is not supported"):
        card + dense.to(CARD)
    assert card.max().item() == 3


def test_moves() -> None:
    _, host = pair()
    card = host.to(CARD)
    assert_alike(card, host)
    back = card.cpu()
    assert back.device.type == "cpu"
    assert torch.equal(back.to_dense(), host.to_dense())
    other = host.to("npu:1")
    assert other.device == torch.device("npu:1")
    assert torch.equal(card.copy_(host * 2).to_dense().cpu(), host.to_dense() * 2)
    assert torch.zeros(2, 3, layout=torch.sparse_coo, device=CARD)._nnz() == 0
    dense = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    assert_alike(dense.to(CARD).to_sparse(), dense.to_sparse())
    assert_alike(dense.to(CARD).to_sparse(1), dense.to_sparse(1))


def test_memory_is_the_cards() -> None:
    before = torch.npu.memory_allocated()
    card = torch.sparse_coo_tensor(
        torch.arange(10000, device=CARD).expand(2, -1), torch.ones(10000, device=CARD), (20000, 20000)
    )
    assert torch.npu.memory_allocated() - before >= 10000 * (8 + 4)
    card = card.coalesce()
    del card
    assert torch.npu.memory_allocated() == before


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.SparseAdam, torch.optim.Adagrad])
def test_an_embedding_with_sparse_gradients_trains(optimizer: type[torch.optim.Optimizer]) -> None:
    trained = []
    for device in ("cpu", CARD):
        torch.manual_seed(0)
        layer = nn.Embedding(10, 3, sparse=True).to(device)
        steps = optimizer(layer.parameters(), lr=0.1)  # type: ignore[call-arg]
        for _ in range(3):
            steps.zero_grad()
            layer(torch.tensor([1, 2, 4, 2], device=device)).square().sum().backward()
            assert layer.weight.grad is not None
            assert layer.weight.grad.is_sparse
            steps.step()
        trained.append(layer.weight.detach().cpu())
    torch.testing.assert_close(*trained)


def test_gradients_flow_through_sparse_tensors() -> None:
    grads = []
    for device in ("cpu", CARD):
        values = torch.tensor([1.0, 2.0, 3.0], device=device, requires_grad=True)
        sparse = torch.sparse_coo_tensor(torch.tensor([[0, 1, 1]], device=device), values, (3,))
        (sparse.to_dense() * torch.tensor([2.0, 3.0, 4.0], device=device)).sum().backward()
        assert values.grad is not None
        grads.append(values.grad.cpu())
    assert torch.equal(*grads)


REFUSED: dict[str, Callable[[], object]] = {
    "aten::addmm": lambda: torch.sparse.mm(pair()[0], torch.ones(4, 4, device=CARD)),
    "aten::mm": lambda: pair()[0] @ torch.ones(4, 4, device=CARD),
    "aten::softmax": lambda: torch.sparse.softmax(pair()[0], 1),
    "aten::index_select": lambda: pair()[0].index_select(0, torch.tensor([1], device=CARD)),
    "aten::mv": lambda: torch.mv(pair()[0], torch.ones(4, device=CARD)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_torch_npu_has_not_is_refused_in_its_words(name: str) -> None:
    with pytest.raises(
        RuntimeError,
        match=r"CAUTION: The operator 'aten::\w+(\.\w+)?' is not currently supported on the NPU"
        r" backend\.\n.*ERR01007 OPS feature not supported",
    ):
        REFUSED[name]()


def compressed(device: torch.device | str, **options: Any) -> torch.Tensor:
    rows, columns = torch.tensor([0, 2, 3], device=device), torch.tensor([0, 1, 1], device=device)
    values = torch.tensor([1.0, 2.0, -3.0], device=device, **options)
    return torch.sparse_csr_tensor(rows, columns, values, (2, 3))


ON_COMPRESSED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "abs": torch.abs,
    "a product with a number": lambda x: x * 2,
    "a product with itself": lambda x: x * x,
    "relu": torch.relu,
    "clone": torch.clone,
    "fill_": lambda x: x.clone().fill_(3),
    "copy_": lambda x: (x * 2).copy_(x),
    "a cast": lambda x: x.half(),
    "columns": lambda x: torch.sparse_csc_tensor(
        torch.tensor([0, 1, 2], device=x.device), torch.tensor([0, 1], device=x.device), x.values()[:2], (2, 2)
    ),
}


@pytest.mark.parametrize("name", ON_COMPRESSED)
def test_operators_of_compressed_tensors(name: str) -> None:
    """All of them were refused."""
    card, host = ON_COMPRESSED[name](compressed(CARD)), ON_COMPRESSED[name](compressed("cpu"))
    assert card.device == CARD
    assert card.layout == host.layout
    assert torch.equal(card.to_dense().cpu(), host.to_dense())
    assert torch.equal(card.cpu().to_dense(), host.to_dense())


def test_parts_of_a_compressed_tensor_and_its_way_to_the_card_and_back() -> None:
    x = compressed("cpu").to(CARD)
    assert x.device == CARD
    assert x.crow_indices().tolist() == [0, 2, 3]
    assert x.col_indices().tolist() == [0, 1, 1]
    assert x.values().tolist() == [1.0, 2.0, -3.0]
    assert (x._nnz(), x.sum().item()) == (3, 0.0)
    assert "device='npu:0'" in repr(x)
    x.zero_()
    assert x.to_dense().tolist() == [[0.0] * 3] * 2


def test_sums_and_products_over_a_compressed_tensor_run_on_the_host_and_can_be_refused() -> None:
    program = """
        import warnings
        import torch
        warnings.simplefilter("ignore")  # the format is in beta state
        parts = torch.tensor([0, 2, 3]), torch.tensor([0, 1, 1]), torch.tensor([1.0, 2.0, -3.0])
        x = torch.sparse_csr_tensor(*(each.npu() for each in parts), (2, 3))
        for name in ("sum", "prod", "sum"):
            print(getattr(torch.ops.aten, f"_sparse_csr_{name}").dim_dtype(x, [1], True).to_dense().tolist())
    """
    done = run(program, sim="910B3")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[[3.0], [-3.0]]", "[[2.0], [-3.0]]", "[[3.0], [-3.0]]"]
    assert done.stderr.count("will fall back to CPU") == 2
    refused = run(program, sim="910B3", TORCH_NPU_FALLBACK_CPU_DISABLE="1")
    assert refused.returncode != 0
    assert "aten::_sparse_csr_sum.dim_dtype" in refused.stderr
    assert "disabled by TORCH_NPU_FALLBACK_CPU_DISABLE=1" in refused.stderr


def test_products_of_compressed_matrices_and_ways_to_other_formats_are_refused() -> None:
    x = compressed(CARD)
    for refused in (
        lambda: x @ torch.ones(3, 2, device=CARD),
        lambda: x.to_sparse(),
        lambda: torch.eye(3, device=CARD).to_sparse_csr(),
        lambda: pair()[0].to_sparse_csr(),
    ):
        with pytest.raises((RuntimeError, NotImplementedError), match=r"npu|CAUTION"):
            refused()
    assert_same(torch.ones(2, device=CARD) + 1, torch.full((2,), 2.0))

"""Indexing: numbers, slices, index tensors of both devices, truth values, scatter and gather.

Holds csrc/torch against the CPU's results. tests/sim/test_simulated.py runs this module in a process with simulated
cards.
"""

from collections.abc import Callable

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies
from torch.testing import assert_close

from against_cpu import CARD, assert_same, compare

INDEX = torch.tensor([0, 2, 2])
ROWS, COLUMNS = torch.tensor([[0], [3]]), torch.tensor([1, 4])
TRUTH = torch.arange(30).view(5, 6) % 4 == 0

READS: dict[str, object] = {
    "number": 2,
    "number from behind": (-1, -2),
    "slice": (slice(1, 4), slice(None, None, 2)),
    "ellipsis": (..., 0),
    "new axis": (None, slice(None), None),
    "list": [3, 0, 3],
    "index": INDEX,
    "index after a slice": (slice(None), INDEX),
    "two indices": (INDEX, INDEX),
    "outer product of indices": (ROWS, COLUMNS),
    "index and number": (INDEX, 1),
    "small integers": INDEX.int(),
    "index of no element": torch.empty(0, dtype=torch.long),
    "truth": TRUTH,
    "truth of rows": TRUTH[:, 0],
    "truth of columns": (slice(None), TRUTH[0]),
    "truth and index": (TRUTH[:, 0], torch.tensor(1)),
    "nothing true": torch.zeros(5, 6, dtype=torch.bool),
    "one truth": torch.tensor(True),
    "negative index": -INDEX - 1,
}


def moved(index: object, device: torch.device) -> object:
    if isinstance(index, tuple):
        return tuple(moved(part, device) for part in index)
    return index.to(device) if isinstance(index, torch.Tensor) else index


@pytest.mark.parametrize("device", ["cpu", "npu"])
@pytest.mark.parametrize("name", READS)
def test_read(name: str, device: str) -> None:
    there = torch.device(device)
    compare(
        lambda t: t[moved(READS[name], there if t.device == CARD else torch.device("cpu"))],
        torch.randn(5, 6, requires_grad=True),
    )


@pytest.mark.parametrize("device", ["cpu", "npu"])
@pytest.mark.parametrize("name", [name for name in READS if name != "new axis"])
def test_write_a_number(name: str, device: str) -> None:
    def go(t: torch.Tensor) -> torch.Tensor:
        t[moved(READS[name], torch.device(device) if t.device == CARD else torch.device("cpu"))] = 7.0
        return t

    compare(go, torch.randn(5, 6))


@pytest.mark.parametrize("name", ["slice", "index after a slice", "outer product of indices", "truth", "truth of rows"])
def test_write_values_and_their_gradients(name: str) -> None:
    host_index = READS[name]
    values = torch.randn(torch.empty(5, 6)[host_index].shape, requires_grad=True)

    def go(t: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        t = t.clone()
        t[moved(host_index, t.device)] = values * 2
        return t

    compare(go, torch.randn(5, 6, requires_grad=True), values)


def test_values_may_be_a_scalar_of_the_host_but_not_a_tensor() -> None:
    card = torch.zeros(5, 6, device=CARD)
    card[0, 0] = torch.tensor(3.0)
    card[INDEX] = torch.tensor(2.0)
    assert card.sum().item() == 2 * 6 * 2
    card[1] = torch.arange(6.0)  # a copy, as everywhere in torch
    assert_same(card[1], torch.arange(6.0))
    with pytest.raises(RuntimeError, match="device"):
        card[INDEX.to(CARD)] = torch.ones(3, 6)


def test_a_tensor_of_the_host_is_not_indexed_from_the_card() -> None:
    host, index = torch.zeros(5), INDEX.to(CARD)
    with pytest.raises(RuntimeError, match="on the same device"):
        host[index]
    with pytest.raises(RuntimeError, match="on the same device"):
        host[index] = 1.0
    with pytest.raises(RuntimeError, match="on the same device"):
        host.index_put_((index,), torch.ones(3), accumulate=True)
    assert_close(host, torch.zeros(5))


def test_an_index_outside_is_an_error() -> None:
    card = torch.zeros(5, 6, device=CARD)
    with pytest.raises(IndexError, match="index 9 is out of bounds for dimension 1 with size 6"):
        card[0, 9]
    with pytest.raises(IndexError, match="does not match the shape of the indexed tensor"):
        card[torch.ones(5, 5, dtype=torch.bool, device=CARD)]
    with pytest.raises(IndexError, match="too many indices"):
        card[0, 0, 0]


def test_accumulation() -> None:
    def go(t: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        index = INDEX.to(t.device)
        return (
            t.index_put((index,), values, accumulate=True),
            t.index_add(0, index, values, alpha=2),
            t.scatter_add(0, index[:, None].expand(3, 6), values),
            t.index_reduce(0, index, values, "amax"),
        )

    with pytest.warns(UserWarning, match="index_reduce"):
        compare(go, torch.randn(5, 6, requires_grad=True), torch.randn(3, 6, requires_grad=True))


OPERATORS: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "index_select": lambda t, i: t.index_select(1, i[0]),
    "gather": lambda t, i: t.gather(1, i),
    "scatter": lambda t, i: t.scatter(1, i[:, :1], t[:, :1]),
    "scatter of a number": lambda t, i: t.scatter(1, i, 3.0),
    "scatter_reduce": lambda t, i: t.scatter_reduce(1, i, t[:, :3], "prod", include_self=False),
    "index_fill": lambda t, i: t.index_fill(0, i[0], -1.0),
    "index_copy": lambda t, i: t.index_copy(0, i[0].unique(), t[:3]),
    "take": lambda t, i: (t.take(i), t.take_along_dim(i, 1)),
    "put": lambda t, i: t.put(i[0], t[0, :3]),
    "masked_scatter": lambda t, i: t.masked_scatter(t > 0, t.flatten().flip(0)),
    "masked_fill": lambda t, i: t.masked_fill(t > 0, t.detach().max()),
    "where": lambda t, i: torch.where(t > 0, t, 0.0),
    "select_scatter": lambda t, i: (t.select_scatter(t[0], 0, 1), t.slice_scatter(t[:2], 0, 2, 4)),
    "diagonal_scatter": lambda t, i: t.diagonal_scatter(t[:, 0]),
    "embedding of rows": lambda t, i: torch.nn.functional.embedding(i, t),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operator(name: str) -> None:
    index = torch.tensor([[0, 2, 1], [1, 0, 2], [3, 4, 0], [2, 1, 3], [4, 0, 2]])
    compare(OPERATORS[name], torch.randn(5, 6, requires_grad=True), index)


def test_places_of_what_is_true() -> None:
    compare(lambda t: (torch.where(t), t.nonzero(as_tuple=True), torch.count_nonzero(t, 1)), TRUTH)


def test_python_asks_single_elements() -> None:
    card = torch.tensor([[1, 2], [3, 4]], device=CARD)
    assert card[1, 0].item() == 3
    assert [int(number) for number in card[0]] == [1, 2]
    assert 4 in card
    assert 5 not in card
    assert bool(card[0, 0] == 1)
    assert [10, 20, 30][card[0, 0]] == 20
    assert len(card) == 2
    assert float(card[0, 1]) == 2.0
    assert f"{card[1, 1].item():d}" == "4"
    with pytest.raises(RuntimeError, match="Boolean value of Tensor with more than one value is ambiguous"):
        bool(card)


def test_numpy_indices() -> None:
    compare(
        lambda t: (t[np.array([0, 2])], t[np.int64(1)], t[np.array([True, False, True, False, False])]),
        torch.randn(5, 6),
    )


def test_assignment_with_a_step_and_broadcast() -> None:
    def go(t: torch.Tensor) -> torch.Tensor:
        t[::2, 1::2] = torch.tensor([1.0, 2.0, 3.0], device=t.device)
        t[1] += 5
        t[:, -1] *= t[:, 0]
        t[t.sum(1) > 3] = 0
        return t

    compare(go, torch.randn(5, 6))


@hypothesis.given(
    strategies.lists(strategies.integers(-5, 4), min_size=1, max_size=6),
    strategies.lists(strategies.integers(-6, 5), min_size=1, max_size=6),
    strategies.booleans(),
)
def test_any_pair_of_indices(rows: list[int], columns: list[int], on_host: bool) -> None:
    host = torch.arange(30.0).view(5, 6)
    card = host.to(CARD)
    device = "cpu" if on_host else CARD
    expected = host[torch.tensor(rows)[:, None], torch.tensor(columns)]
    got = card[torch.tensor(rows, device=device)[:, None], torch.tensor(columns, device=device)]
    assert_close(got.cpu(), expected, rtol=0, atol=0)
    card.index_put_((torch.tensor(rows, device=device),), torch.ones(6, device=CARD), accumulate=True)
    host.index_put_((torch.tensor(rows),), torch.ones(6), accumulate=True)
    assert_same(card, host)

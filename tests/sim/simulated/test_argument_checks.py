"""Arguments that are wrong, or that torch_npu alone refuses: its texts and codes, and what only the card finds out.

Holds csrc/torch/checks.cpp against torch_npu's texts and codes. tests/sim/test_simulated.py runs this module in a
process with simulated cards.
"""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from against_cpu import CARD
from children import facts

SIM = "910B3x2"

X = torch.arange(12.0, device=CARD).reshape(3, 4)
THETA = torch.ones(1, 1, 1, device=CARD, requires_grad=True)
PICTURE = torch.ones(1, 2, 6, 6, device=CARD)

WRONG: dict[str, tuple[Callable[[], object], str, str]] = {
    "rounding": (
        lambda: torch.div(X, 2, rounding_mode="test"),
        "div expected rounding_mode to be one of None, 'trunc', or 'floor' but found 'test'", "ERR01001",
    ),
    "a step of zero": (lambda: torch.arange(0, 3, 0, device=CARD), "step must be nonzero", "ERR01003"),
    "no step to the end": (
        lambda: torch.arange(3, 0, 1, device=CARD),
        "upper bound and larger bound inconsistent with step sign", "ERR01003",
    ),
    "a divisor of zero": (lambda: F.avg_pool2d(PICTURE, 2, divisor_override=0), "divisor must be not zero", "ERR01003"),
    "no bins": (lambda: torch.histc(X, bins=0), "bins must be > 0", "ERR01003"),
    "a mask of another shape": (
        lambda: X[torch.ones(5, 5, dtype=torch.bool, device=CARD)],
        "does not match the shape of the indexed tensor", "ERR01003",
    ),
    "values that do not fit": (
        lambda: X.index_put_((torch.tensor([0, 1], device=CARD),), torch.ones(3, device=CARD)),
        "shape mismatch: value tensor of shape", "ERR01001",
    ),
    "indices that do not fit": (
        lambda: X[torch.tensor([0, 1], device=CARD), torch.tensor([0, 1, 2], device=CARD)],
        "shape mismatch: indexing tensors could not be broadcast together with shapes", "ERR01003",
    ),
    "a negative deviation": (
        lambda: torch.empty(2, device=CARD).normal_(0, -1), "normal expects std >= 0.0", "ERR01003",
    ),
    "gelu": (
        lambda: F.gelu(X, approximate="no"), "NPU error, approximate argument must be either none or tanh.", "ERR01001",
    ),
}  # fmt: skip

REFUSED_ON_CARDS: dict[str, tuple[Callable[[], object], str, str]] = {
    "gradient of a grid in three dimensions": (
        lambda: F.affine_grid(THETA.expand(1, 3, 4), [1, 1, 2, 2, 2], False).sum().backward(),
        "AffineGridGeneratorBackward needs 4d (spatial) input.", "ERR01001",
    ),
    "singular values of float64": (
        lambda: torch.linalg.svd(torch.ones(2, 2, dtype=torch.float64, device=CARD)),
        "svd_npu only supported Float, but getdouble", "ERR01002",
    ),
    "bilinear float64": (
        lambda: F.interpolate(PICTURE.to(CARD, torch.float64), scale_factor=2, mode="bilinear"),
        "upsample_binlinear_2d not support torch.fp64 dtypes", "ERR01002",
    ),
    "the greatest distance": (
        lambda: torch.pdist(X, float("inf")), "p dose not support float64 currently.", "ERR01002",
    ),
    "gradient of the greatest distance": (
        lambda: torch.cdist(X.clone().requires_grad_(), X + 1, float("inf")).sum().backward(),
        "The value of p (inf) exceeds the maximum value of float (3402823", "ERR01001",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_errors_have_torch_npus_text_and_code(name: str) -> None:
    act, text, code = WRONG[name]
    with pytest.raises((RuntimeError, IndexError, TypeError)) as caught:
        act()
    assert text in str(caught.value)
    assert f", RankID:-1) {code} OPS " in str(caught.value)


@pytest.mark.parametrize("name", REFUSED_ON_CARDS)
def test_what_the_host_takes_and_torch_npu_refuses(name: str) -> None:
    act, text, code = REFUSED_ON_CARDS[name]
    with pytest.raises(RuntimeError) as caught:
        act()
    assert text in str(caught.value)
    assert f", RankID:-1) {code} OPS " in str(caught.value)


def test_what_torch_npu_takes_of_the_same_operators() -> None:
    F.affine_grid(torch.ones(1, 2, 3, device=CARD, requires_grad=True), [1, 1, 2, 2], False).sum().backward()
    torch.linalg.svd(torch.ones(2, 2, device=CARD))
    torch.pdist(X, 2.0)
    torch.cdist(X.clone().requires_grad_(), X + 1, 2.0).sum().backward()
    F.interpolate(PICTURE, scale_factor=2, mode="bilinear")


def test_more_memory_than_there_are_addresses() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate more than 1EB memory"):
        torch.empty(1024 * 1024 * 1024 * 1024 * 1024 * 1024, dtype=torch.uint8, device=CARD)


def bad(value: int) -> torch.Tensor:
    return torch.tensor([value], device=CARD)


OUTSIDE: dict[str, tuple[Callable[[], torch.Tensor], tuple[int, ...]]] = {
    "embedding": (lambda: nn.Embedding(4, 2, device=CARD)(bad(4)), (1, 2)),
    "index": (lambda: X[bad(3)], (1, 4)),
    "index_put": (lambda: X.clone().index_put_((bad(3),), torch.zeros(1, device=CARD)), (3, 4)),
    "gather": (lambda: X.gather(0, bad(7).expand(1, 4)), (1, 4)),
    "index_select": (lambda: X.index_select(1, bad(4)), (3, 1)),
    "scatter": (lambda: X.scatter(0, bad(3).expand(1, 4), 1.0), (3, 4)),
    "cross_entropy": (lambda: F.cross_entropy(X[:1], bad(9)), ()),
    "take": (lambda: X.take(bad(12)), (1,)),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_an_index_that_no_element_has_is_found_by_the_card(name: str) -> None:
    """The call gives a result of the right shape, whose values nobody knows; the next wait has the card's error."""
    act, shape = OUTSIDE[name]
    torch.npu.synchronize()
    made = act()
    assert (made.shape, made.device) == (shape, CARD)
    with pytest.raises(RuntimeError, match=r"507035(?s:.*)The vector core execution is abnormal"):
        torch.npu.synchronize()
    assert (X.cpu() == torch.arange(12.0).reshape(3, 4)).all()


def test_a_wrong_label_is_the_cards_error_in_a_step_of_training_too() -> None:
    """backward() raised the CPU's IndexError."""
    x = X[:1].clone().requires_grad_()
    F.cross_entropy(x, bad(9)).backward()
    assert x.grad is not None
    with pytest.raises(RuntimeError, match="507035"):
        torch.npu.synchronize()
    for loss in (lambda: F.multi_margin_loss(X, bad(9).expand(3)), lambda: F.embedding_bag(bad(9), X, bad(0) * 0)):
        loss()
        with pytest.raises(RuntimeError, match="507035"):
            torch.npu.synchronize()


def test_an_index_that_the_host_knows_is_an_error_at_once() -> None:
    with pytest.raises(IndexError, match="index 9 is out of bounds for dimension 1 with size 4"):
        X[0, 9]
    with pytest.raises(IndexError, match="Dimension out of range"):
        X.gather(5, bad(0))
    torch.npu.synchronize()


def test_with_launch_blocking_the_call_with_the_wrong_index_fails() -> None:
    code = """
        import json, torch
        try:
            torch.nn.Embedding(4, 2, device="npu")(torch.tensor([4], device="npu"))
            told = ""
        except RuntimeError as error:
            told = str(error)
        print(json.dumps(told))
    """
    assert "507035" in facts(code, ASCEND_LAUNCH_BLOCKING="1")

"""torch's own database of operators and samples: results, gradients, in place and out=, the card against the CPU.

Holds csrc/torch against the CPU, with torch's own database of operators. tests/sim/test_simulated.py runs this module
in a process with simulated cards.

Every run takes a fixed draw of the operators, `make soak` takes all of them.
"""

import itertools
import os
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from against_cpu import CARD, assert_same, on, tensors

pytest.importorskip("expecttest", reason="torch's database of operators needs expecttest")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

SOAK = os.environ.get("TOPROPE_SOAK") == "1"
SAMPLES = 60 if SOAK else 10
FEWER = 20 if SOAK else 4
DRAWN, DRAWN_MORE = 80, 20

LEFT_OUT = {
    "as_strided.partial_views": "reads memory beside its operand, which a copy of the operand does not have",
    "tensor_split": "its index tensor must stay on the host",
    "sparse.mm.reduce": "the card has no sparse tensors",
    "sparse.sampled_addmm": "the card has no sparse tensors",
    "to_sparse": "the card has no sparse tensors",
}
FLOAT32_FOR_FLOAT64 = ("double", "float_power", "to")
"""A cast to float64 gives float32, with a warning, as torch_npu's does."""

FLOAT32_STATISTICS = ("native_layer_norm",)
"""Mean and deviation are in float32, whatever the type of the input."""

HALF = (torch.bfloat16, torch.float16)
FORMATS = (None, torch.contiguous_format, torch.preserve_format)
OTHER_DTYPES = (torch.complex64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool)
TOLERANCE = {torch.float32: 1e-4, torch.complex64: 1e-4, torch.bfloat16: 5e-2, torch.float16: 5e-3}


def name_of(info: Any) -> str:
    return f"{info.name}.{info.variant_test_name}" if info.variant_test_name else info.name


def draw(count: int) -> list[Any]:
    """All operators; those outside the draw are marked for the soak."""
    known = {name_of(info): info for info in op_db}
    names = sorted(name for name in known if name not in LEFT_OUT and not name.startswith("jiterator"))  # CUDA's own
    names = [name for name in names if "empty" not in name]  # no defined values
    drawn = set(random.Random(0).sample(names, count))
    return [pytest.param(known[n], id=n, marks=() if n in drawn else pytest.mark.soak) for n in names]


def samples(info: Any, dtype: torch.dtype, count: int, requires_grad: bool = False) -> list[tuple[Any, Any, Any]]:
    if dtype not in info.dtypes:
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = info.sample_inputs("cpu", dtype, requires_grad=requires_grad)
        # a card has contiguous tensors only (ERR01007)
        taken = (each for each in found if each.kwargs.get("memory_format") in FORMATS)
        made = list(itertools.islice(taken, count))
    return [(sample.input, sample.args, sample.kwargs) for sample in made]


def to_card(tree: Any) -> Any:
    """Arguments for the card: tensors are copied, the name of the host becomes the card's."""

    def move(item: Any) -> Any:
        if isinstance(item, torch.device):
            return CARD if item.type == "cpu" else item
        return str(CARD) if isinstance(item, str) and item == "cpu" else item

    return on(CARD, tree_map(move, tree))


class Draws(TorchDispatchMode):
    """Sees whether an operator draws random numbers."""

    seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen |= torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


@dataclass
class Outcome:
    result: Any = None
    error: Exception | None = None
    warnings: set[str] = field(default_factory=set)
    drew: bool = False
    """True if it drew from the host's generator: the card's gives other numbers."""


def run(function: Callable[..., Any], given: tuple[Any, Any, Any], device: str, **more: Any) -> Outcome:
    """What a function gives for the arguments of a sample."""
    first, rest, options = given
    outcome = Outcome()
    torch.manual_seed(1)
    with warnings.catch_warnings(record=True) as seen, torch.device(device):
        warnings.simplefilter("always")
        try:
            outcome.result = function(first, *rest, **options, **more)
        except (RuntimeError, TypeError, IndexError, ValueError) as error:
            outcome.error = error
    outcome.warnings = {str(warning.message) for warning in seen}
    return outcome


def run_on_host(function: Callable[..., Any], given: tuple[Any, Any, Any], **more: Any) -> Outcome:
    """`run` on the host, and once more to see whether it draws: under a dispatch mode torch inverts complex wrongly."""
    again, others = on("cpu", given), on("cpu", more)  # also `out`, which the second run would write over
    outcome = run(function, given, "cpu", **more)
    with Draws() as draws:
        run(function, again, "cpu", **others)
    outcome.drew = draws.seen
    return outcome


def described(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.stride()


def assert_same_outcome(card: Outcome, host: Outcome, tolerance: float = 1e-4) -> bool:
    """Both are the same result, or errors of the same kind. True if there is a result."""
    assert type(card.error) is type(host.error), card.error or host.error
    assert card.warnings <= host.warnings
    if host.error is None and host.drew:
        assert [described(t) for t in tensors(card.result)] == [described(t) for t in tensors(host.result)]
    elif host.error is None:
        assert_same(card.result, host.result, rtol=tolerance, atol=tolerance)
    return host.error is None


def is_refused_by_contiguous(info: Any, given: Any) -> bool:
    """True if torch's formula of the gradient asks for channels_last, which the card has not (ERR01007)."""
    if info.name != "nn.functional.max_unpool2d":
        return False
    return any(t.dim() == 4 and t.is_contiguous(memory_format=torch.channels_last) for t in tensors(given))


def as_card_has_it(info: Any, host: Any, card: Any) -> Any:
    """A result of the host, in float32 if it is in float64 and the card cast it so."""
    if info.name in FLOAT32_FOR_FLOAT64 and isinstance(card, torch.Tensor) and card.dtype is torch.float32:
        return host.float() if host.dtype is torch.float64 else host
    return host


def assert_same_as_wider(info: Any, sample: Any, card: Outcome, host: Outcome, tolerance: float) -> None:
    """A result in half precision is the host's own, or nearer to what the host computes in float32."""
    try:
        assert_same_outcome(card, host, tolerance)
    except AssertionError:
        wide = run(info, tree_map(lambda t: t.float() if getattr(t, "dtype", None) in HALF else t, sample), "cpu")
        if card.error is not None or wide.error is not None:
            raise
        if info.name not in FLOAT32_STATISTICS:
            assert [described(t) for t in tensors(card.result)] == [described(t) for t in tensors(host.result)]
        for ours, exact in zip(tensors(card.result), tensors(wide.result), strict=True):
            assert_close(ours.cpu().float(), exact.float(), rtol=tolerance, atol=tolerance, equal_nan=True)


def gradients(result: Any, given: Any) -> list[torch.Tensor | None]:
    roots = [t for t in tensors(result) if t.requires_grad]
    leaves = [t for t in tensors(given) if t.requires_grad]
    if not roots or not leaves:
        return []
    weights = [torch.linspace(0.5, 1.5, t.numel()).view(t.shape).to(t.device, t.dtype) for t in roots]
    return list(torch.autograd.grad(roots, leaves, weights, allow_unused=True))


@pytest.mark.parametrize("info", draw(DRAWN))
def test_results_and_gradients(info: Any) -> None:
    for sample in samples(info, torch.float32, SAMPLES, requires_grad=info.supports_autograd):
        host_given, card_given = on("cpu", sample), to_card(sample)
        host, card = run_on_host(info, host_given), run(info, card_given, "npu")
        host.result = as_card_has_it(info, host.result, card.result)
        if assert_same_outcome(card, host) and not is_refused_by_contiguous(info, card_given[0]):
            ours = run(gradients, (card.result, (card_given,), {}), "cpu")
            theirs = run(gradients, (host.result, (host_given,), {}), "cpu")
            assert type(ours.error) is type(theirs.error), ours.error or theirs.error
            assert {t.device for t in tensors(ours.result)} <= {CARD}
            if host.drew:
                continue
            assert_close(on("cpu", ours.result), on("cpu", theirs.result), rtol=1e-3, atol=1e-3, equal_nan=True)


@pytest.mark.parametrize("info", draw(DRAWN_MORE))
def test_other_dtypes(info: Any) -> None:
    for dtype in OTHER_DTYPES:
        if info.name == "native_dropout_backward" and not dtype.is_floating_point:
            continue  # there are no gradients of integers
        for sample in samples(info, dtype, FEWER):
            host, card = run_on_host(info, on("cpu", sample)), run(info, to_card(sample), "npu")
            host.result = as_card_has_it(info, host.result, card.result)
            if dtype in HALF:
                assert_same_as_wider(info, sample, card, host, TOLERANCE[dtype])
            else:
                assert_same_outcome(card, host, TOLERANCE.get(dtype, 1e-4))


@pytest.mark.parametrize("info", [case for case in draw(DRAWN_MORE) if case.values[0].inplace_variant is not None])
def test_in_place(info: Any) -> None:
    for dtype in (torch.float32, torch.complex64):
        for sample in samples(info, dtype, FEWER):
            host_given, card_given = on("cpu", sample), to_card(sample)
            host, card = run_on_host(info.inplace_variant, host_given), run(info.inplace_variant, card_given, "npu")
            if assert_same_outcome(card, host):
                assert card.result is card_given[0]


def place_for(result: torch.Tensor, kind: str, device: str) -> torch.Tensor:
    """A place for a result: of its very form, with gaps between its elements, or without elements."""
    if kind == "no elements":
        return torch.empty(0, dtype=result.dtype, device=device)
    stride = [(2 if kind == "gaps" else 1) * step for step in result.stride()]
    return torch.empty_strided(result.shape, stride, dtype=result.dtype, device=device).fill_(1)


@pytest.mark.parametrize("info", [case for case in draw(DRAWN_MORE) if case.values[0].supports_out])
def test_out(info: Any) -> None:
    for dtype, kind in itertools.product((torch.float32, torch.complex64), ("whole", "gaps", "no elements")):
        for sample in samples(info, dtype, FEWER):
            result = run(info, on("cpu", sample), "cpu").result
            parts = result if isinstance(result, tuple) else (result,)
            if not all(isinstance(part, torch.Tensor) for part in parts):
                continue  # a number, or a list among the results
            host = tree_map(lambda t: place_for(t, kind, "cpu"), result)  # noqa: B023 - called here
            card = tree_map(lambda t: place_for(t, kind, "npu:0"), result)  # noqa: B023
            addresses = [t.data_ptr() for t in tensors(card)]
            plain = run_on_host(info, on("cpu", sample), out=host)
            if assert_same_outcome(run(info, to_card(sample), "npu", out=card), plain):
                if not plain.drew:
                    assert_same(card, host, rtol=1e-4, atol=1e-4)
                assert kind == "no elements" or addresses == [t.data_ptr() for t in tensors(card)]

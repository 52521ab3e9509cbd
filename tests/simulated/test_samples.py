"""torch's own database of operators and samples: forward in float32, the card against the CPU.

Every run takes a fixed draw of the operators, `make soak` takes all of them.
"""

import itertools
import os
import random
import warnings
from typing import Any

import pytest
import torch
from against_cpu import CARD, assert_same, on
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves, tree_map

pytest.importorskip("expecttest", reason="torch's database of operators needs expecttest")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

SOAK = os.environ.get("TOPROPE_SOAK") == "1"
SAMPLES = 60 if SOAK else 12
DRAWN = 120

LEFT_OUT = {
    "as_strided.partial_views": "reads memory beside its operand, which a copy of the operand does not have",
    "tensor_split": "its index tensor must stay on the host",
    "sparse.mm.reduce": "the card has no sparse tensors",
    "sparse.sampled_addmm": "the card has no sparse tensors",
    "to_sparse": "the card has no sparse tensors",
}
UNDEFINED = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")


def name_of(info: Any) -> str:
    return f"{info.name}.{info.variant_test_name}" if info.variant_test_name else info.name


def cases() -> list[Any]:
    known = {name_of(info): info for info in op_db if torch.float32 in info.dtypes}
    names = sorted(name for name in known if name not in LEFT_OUT and not name.startswith("jiterator"))  # CUDA's own
    drawn = set(random.Random(0).sample(names, DRAWN))
    return [pytest.param(known[n], id=n, marks=() if n in drawn else pytest.mark.soak) for n in names]


def to_card(tree: Any) -> Any:
    """The arguments of a sample for the card: tensors are copied, the name of the host becomes the card's."""

    def move(item: Any) -> Any:
        if isinstance(item, torch.device):
            return CARD if item.type == "cpu" else item
        return str(CARD) if isinstance(item, str) and item == "cpu" else item

    return on(CARD, tree_map(move, tree))


def run(info: Any, sample: Any, device: str) -> tuple[Any, list[str]]:
    """What an operator gives for a sample, and the warnings on the way."""
    torch.manual_seed(1)  # both generators are of one kind, so even random numbers are the same
    given = (sample.input, sample.args, sample.kwargs)
    first, rest, options = to_card(given) if device == "npu" else on("cpu", given)
    with warnings.catch_warnings(record=True) as seen, torch.no_grad(), torch.device(device):
        warnings.simplefilter("always")
        result = info(first, *rest, **options)
    return result, [str(warning.message) for warning in seen]


@pytest.mark.parametrize("info", cases())
def test_samples(info: Any) -> None:
    compared = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = list(itertools.islice(info.sample_inputs("cpu", torch.float32), SAMPLES))
    for sample in samples:
        host, expected_warnings = run(info, sample, "cpu")
        card, card_warnings = run(info, sample, "npu")
        assert set(card_warnings) <= set(expected_warnings)
        if info.name in UNDEFINED:
            assert_close([t.shape for t in tree_leaves(card)], [t.shape for t in tree_leaves(host)])
        else:
            assert_same(card, host, rtol=1e-4, atol=1e-4)
        compared += 1
    assert compared == len(samples) > 0

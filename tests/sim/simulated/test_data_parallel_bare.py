"""nn.DataParallel on the card alone, without toprope.compat, which brings what torch_npu brings.

Holds sim without compat against torch's own behaviour without CUDA. tests/sim/test_simulated.py runs this module in a
process with simulated cards.

torch that is built without CUDA has no scatter and gather of its own: its AttributeError is what a program sees.
"""

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.skipif(hasattr(torch._C, "_scatter"), reason="this torch was built with CUDA")


@pytest.mark.parametrize("where", ["cpu", "npu:0"])
def test_torchs_own_error(where: str) -> None:
    model = nn.DataParallel(nn.Linear(8, 4).to("npu:0"), device_ids=[0, 1])
    with pytest.raises(AttributeError, match=r"^module 'torch\._C' has no attribute '_scatter'$"):
        model(torch.ones(6, 8, device=where))


def test_a_single_card_fails_alike() -> None:
    model = nn.DataParallel(nn.Linear(8, 4).to("npu:0"), device_ids=[0])
    with pytest.raises(AttributeError, match="_scatter"):
        model(torch.ones(6, 8))


def test_every_card_is_taken_where_none_is_named() -> None:
    assert nn.DataParallel(nn.Linear(8, 4)).device_ids == [0, 1, 2, 3]

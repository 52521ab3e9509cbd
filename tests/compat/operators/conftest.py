"""Set-up of the tests of torch_npu's operators: in this process and without a card, with seeds by test.

`make test` runs the files in QUICK. The others are left to `make check`, a quarter of the tests at a time.
"""

import random
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

HERE = Path(__file__).parent
QUICK = ("test_inference_attention", "test_linear", "test_moe_permute", "test_norm_quant")


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent == HERE and item.path.stem not in QUICK:
            item.add_marker("slow")


@pytest.fixture(autouse=True)
def same_numbers(request):
    """Every run of a test draws the same numbers."""
    seed = zlib.crc32(request.node.nodeid.rpartition("/")[2].encode())
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)

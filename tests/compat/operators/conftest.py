import random
import zlib

import numpy as np
import pytest
import torch


@pytest.fixture(autouse=True)
def same_numbers(request):
    """Every run of a test draws the same numbers."""
    seed = zlib.crc32(request.node.nodeid.rpartition("/")[2].encode())
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@pytest.fixture(scope="session")
def facade():
    """The facade of torch_npu, in this process and without a card."""
    import toprope.compat.torch_npu as module
    from toprope.compat import no_npu

    yield module
    no_npu.uninstall()

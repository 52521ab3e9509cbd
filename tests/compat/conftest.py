"""The facade of torch_npu for the tests of this folder."""

import pytest


@pytest.fixture(scope="module")
def facade():
    """The facade under its long name; a `torch.npu` that it brought without a card goes again."""
    import toprope.compat.torch_npu as module
    from toprope.compat import no_npu

    yield module
    no_npu.uninstall()

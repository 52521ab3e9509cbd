"""The facade of torch_npu for the tests of this folder."""

import pytest


@pytest.fixture(scope="module")
def facade():
    """The facade under its long name, under which it leaves torch as it is."""
    import toprope.compat.torch_npu as module

    return module

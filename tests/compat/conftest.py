"""Fixture `facade` for the tests of this folder: toprope's torch_npu, in this process."""

import pytest


@pytest.fixture(scope="module")
def facade():
    """The facade under its long name, under which it leaves torch as it is."""
    import toprope.compat.torch_npu as module

    return module

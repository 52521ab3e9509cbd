import pytest


@pytest.fixture(scope="session")
def facade():
    """The facade of torch_npu, in this process and without a card."""
    import toprope.compat.torch_npu as module
    from toprope.compat import no_npu

    yield module
    no_npu.uninstall()

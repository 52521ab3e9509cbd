"""Programs on the simulated card that use toprope's torch_npu, in a process of their own."""

from cuda_programs import run

HEAD = """
import toprope.compat
toprope.compat.install()
import torch, torch_npu

def refused(kind, text, function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except kind as error:
        assert text in str(error), str(error)
        return str(error)
    raise AssertionError(f"{function} did not raise {kind}")
"""


def on_card(code, **variables):
    """Run a program that may use `refused`; its variables are set, too."""
    return run(code, head=HEAD, **variables)

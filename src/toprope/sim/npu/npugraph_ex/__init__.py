"""Package `torch.npu.npugraph_ex`: scopes for single operators and for graphs of the backend "npugraph_ex".

Names are torch_npu's; those that cannot be here say so when they are asked for. Tests:
tests/sim/simulated/test_graph.py.
"""

from typing import Any

from toprope.sim.npu._state import not_here
from toprope.sim.npu.npugraph_ex import scope
from toprope.sim.npu.unavailable import NotHereError

__all__ = ["scope"]

_ABSENT = {
    "compile_fx": 'graphs are compiled by torch.compile(..., backend="npugraph_ex")',
    "inference": "there are no compiled graphs on disk",
    "register_replacement": "no operators are fused",
}


def __getattr__(name: str) -> Any:
    if name in _ABSENT:
        raise NotHereError(*not_here(f"npugraph_ex.{name}", _ABSENT[name]).args)
    raise AttributeError(f"module 'torch.npu.npugraph_ex' has no attribute {name!r}", name=name)

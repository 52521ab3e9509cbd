"""Facade package `torch_npu.dynamo`: names of the graph modes. Nothing is compiled for a card here.

torch.compile knows the backends "npu", "npugraph_ex" and "npugraphs" with or without this module (toprope.sim.inductor
registers them): a traced graph runs as it is on the simulated card, after the checks of `torchair` for the first two,
and recorded for the last. The functions by which torch_npu loads its graph engine are missing. Tests:
tests/compat/test_torch_npu_utils.py for the module, tests/sim/simulated/test_graph_trees.py for the backends.
"""

from toprope.compat.missing import missing_from
from toprope.sim.inductor.npugraphs_backend import npugraphs as _npugraphs_backend_entrypoint  # noqa: F401

__all__: list[str] = []

NPUGRAPH_EX_BACKEND = "npugraph_ex"

__getattr__ = missing_from(__name__)

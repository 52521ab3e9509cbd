"""torchair's scopes in traced models: context managers, the marks that they leave in a graph, and their reading.

Part of graph mode of the simulated card; `air` is the vendor's namespace of these marks, torch.ops.air. Used by
toprope.sim.graph and by torch.npu.npugraph_ex. Tests: tests/sim/simulated/test_graph.py.
"""

import torch as _torch  # noqa: F401 # first: it installs the card where TOPROPE_SIM asks for one, which needs this package

__all__: list[str] = []

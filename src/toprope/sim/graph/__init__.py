"""Graph mode on the simulated card: torchair's scopes, and the backend of torch.compile that reads them.

Programs reach it as `torchair` (toprope.compat.torchair). backend.py is called by torch.compile and picks the mode:
aclgraph.py captures graphs by stream, ge.py is the graph engine. Tests: tests/sim/simulated/test_graph.py; users' page:
docs/graph.md.
"""

import torch as _torch  # noqa: F401 # first: it installs the card where TOPROPE_SIM asks for one, which needs this package

from toprope.sim.air.contexts import (
    data_dump,
    limit_core_num,
    npu_stream_switch,
    npu_wait_tensor,
    op_never_timeout,
    super_kernel,
)
from toprope.sim.graph.backend import NpuBackend, get_npu_backend
from toprope.sim.graph.compiled import CompiledGraph, Operator
from toprope.sim.graph.config import CompilerConfig

__all__ = [
    "CompiledGraph",
    "CompilerConfig",
    "NpuBackend",
    "Operator",
    "data_dump",
    "get_npu_backend",
    "limit_core_num",
    "npu_stream_switch",
    "npu_wait_tensor",
    "op_never_timeout",
    "super_kernel",
]

"""Facade module `torchair.scope`: context managers around operators of a compiled model, from toprope.sim.graph.

Programs import it by this name. Its names are the vendor's, compared by tests/compat/test_vendor_names.py; the scopes
themselves are tested in tests/compat/test_torchair_facade.py.
"""

from toprope.compat.missing import missing_from
from toprope.sim.graph import (
    data_dump,
    limit_core_num,
    npu_stream_switch,
    npu_wait_tensor,
    op_never_timeout,
    super_kernel,
)

__all__ = [
    "data_dump",
    "limit_core_num",
    "npu_stream_switch",
    "npu_wait_tensor",
    "op_never_timeout",
    "super_kernel",
]

__getattr__ = missing_from(__name__)

"""Facade module `dataflow.dataflow`: graph building of toprope.flow, as in `dataflow.dataflow.FlowOutput`.

Programs import it by this name, which is the vendor's, and so are the names in it, with `_global_options` at which the
vendor's own tests look. What they do is changed in toprope.flow. Tests: tests/flow/test_flow_func.py.
"""

from typing import Any

from toprope.compat.missing import missing_from
from toprope.flow import (
    CountBatch,
    DfAbortException,
    DfException,
    FlowData,
    FlowFlag,
    FlowGraph,
    FlowGraphProcessPoint,
    FlowInfo,
    FlowNode,
    FlowOutput,
    Framework,
    FuncProcessPoint,
    GraphProcessPoint,
    Tensor,
    TensorDesc,
    TimeBatch,
    alloc_tensor,
    finalize,
    init,
    msg_type_register,
    session,
)

__all__ = [
    "CountBatch",
    "DfAbortException",
    "DfException",
    "FlowData",
    "FlowFlag",
    "FlowGraph",
    "FlowGraphProcessPoint",
    "FlowInfo",
    "FlowNode",
    "FlowOutput",
    "Framework",
    "FuncProcessPoint",
    "GraphProcessPoint",
    "Tensor",
    "TensorDesc",
    "TimeBatch",
    "alloc_tensor",
    "finalize",
    "init",
    "msg_type_register",
]

_missing = missing_from(__name__)


def __getattr__(name: str) -> Any:
    if name == "_global_options":  # the vendor's tests look at it
        return session.given()
    return _missing(name)

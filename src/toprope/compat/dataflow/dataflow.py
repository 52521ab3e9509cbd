"""Graph building under its own module's name, as in `dataflow.dataflow.FlowOutput`."""

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

__getattr__ = missing_from(__name__)

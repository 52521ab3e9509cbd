"""All names of the dataflow API.

`toprope.flow` and the facade `dataflow` export exactly this list. Most names are CANN's (its package `dataflow`);
`FlowResult`, `local` and the subclasses of `DfException` are toprope's own. A name that is left out breaks users'
programs. Tests: tests/flow/test_flow_func.py.
"""

from toprope.flow import data_type, utils
from toprope.flow.data_type import (
    DT_BF16,
    DT_BOOL,
    DT_DOUBLE,
    DT_FLOAT,
    DT_FLOAT16,
    DT_INT8,
    DT_INT16,
    DT_INT32,
    DT_INT64,
    DT_STRING,
    DT_UINT8,
    DT_UINT16,
    DT_UINT32,
    DT_UINT64,
    TensorDesc,
)
from toprope.flow.exceptions import DfAbortException, DfAssertionError, DfException, DfTypeError, DfValueError
from toprope.flow.flow_graph import FlowGraph
from toprope.flow.flow_info import FlowFlag, FlowInfo
from toprope.flow.graph.nodes import FlowData, FlowNode, FlowOutput
from toprope.flow.points.decorators import method, pyflow
from toprope.flow.points.npu_models import npu_model
from toprope.flow.points.process_points import FlowGraphProcessPoint, Framework, FuncProcessPoint, GraphProcessPoint
from toprope.flow.points.python_points import local
from toprope.flow.registry import msg_type_register
from toprope.flow.result import FlowResult
from toprope.flow.running import get_running_device_id, get_running_instance_id, get_running_instance_num
from toprope.flow.session import finalize, init
from toprope.flow.stage.spec import CountBatch, TimeBatch
from toprope.flow.tensor import Tensor, alloc_tensor

__all__ = [
    "DT_BF16",
    "DT_BOOL",
    "DT_DOUBLE",
    "DT_FLOAT",
    "DT_FLOAT16",
    "DT_INT8",
    "DT_INT16",
    "DT_INT32",
    "DT_INT64",
    "DT_STRING",
    "DT_UINT8",
    "DT_UINT16",
    "DT_UINT32",
    "DT_UINT64",
    "CountBatch",
    "DfAbortException",
    "DfAssertionError",
    "DfException",
    "DfTypeError",
    "DfValueError",
    "FlowData",
    "FlowFlag",
    "FlowGraph",
    "FlowGraphProcessPoint",
    "FlowInfo",
    "FlowNode",
    "FlowOutput",
    "FlowResult",
    "Framework",
    "FuncProcessPoint",
    "GraphProcessPoint",
    "Tensor",
    "TensorDesc",
    "TimeBatch",
    "alloc_tensor",
    "data_type",
    "finalize",
    "get_running_device_id",
    "get_running_instance_id",
    "get_running_instance_num",
    "init",
    "local",
    "method",
    "msg_type_register",
    "npu_model",
    "pyflow",
    "utils",
]

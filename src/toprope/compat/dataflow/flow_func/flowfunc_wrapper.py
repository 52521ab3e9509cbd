"""Facade module `dataflow.flow_func.flowfunc_wrapper`: names of toprope.flow for code that runs inside a stage.

The vendor's module is the compiled part of DataFlow for stages. Names, codes and numbers are the vendor's; what is
behind them is toprope.flow's. The vendor's classes of messages, parameters and contexts are not here: in toprope only
the stage makes such objects. Tests: tests/flow/test_flow_func.py.
"""

from enum import IntEnum

from toprope.compat.missing import missing_from
from toprope.flow.func_log import FlowFuncLogLevel, FlowFuncLogType
from toprope.flow.udf.flow_func import (
    FLOW_FUNC_ERR_ATTR_NOT_EXITS,
    FLOW_FUNC_ERR_ATTR_TYPE_MISMATCH,
    FLOW_FUNC_ERR_DRV_ERROR,
    FLOW_FUNC_ERR_EVENT_ERROR,
    FLOW_FUNC_ERR_MEM_BUF_ERROR,
    FLOW_FUNC_ERR_PARAM_INVALID,
    FLOW_FUNC_ERR_QUEUE_ERROR,
    FLOW_FUNC_ERR_TIME_OUT_ERROR,
    FLOW_FUNC_ERR_USER_DEFINE_END,
    FLOW_FUNC_ERR_USER_DEFINE_START,
    FLOW_FUNC_FAILED,
    FLOW_FUNC_STATUS_EXIT,
    FLOW_FUNC_STATUS_REDEPLOYING,
    FLOW_FUNC_SUCCESS,
    MSG_TYPE_PICKLED_MSG,
    MSG_TYPE_RAW_MSG,
    MSG_TYPE_TENSOR_DATA,
    MSG_TYPE_TORCH_TENSOR_MSG,
    MSG_TYPE_USER_DEFINE_START,
    AffinityPolicy,
    BalanceConfig,
    FlowFuncLogger,
)
from toprope.flow.udf.messages import MsgType

__all__ = [
    "FLOW_FUNC_ERR_ATTR_NOT_EXITS",
    "FLOW_FUNC_ERR_ATTR_TYPE_MISMATCH",
    "FLOW_FUNC_ERR_DRV_ERROR",
    "FLOW_FUNC_ERR_EVENT_ERROR",
    "FLOW_FUNC_ERR_MEM_BUF_ERROR",
    "FLOW_FUNC_ERR_PARAM_INVALID",
    "FLOW_FUNC_ERR_QUEUE_ERROR",
    "FLOW_FUNC_ERR_TIME_OUT_ERROR",
    "FLOW_FUNC_ERR_USER_DEFINE_END",
    "FLOW_FUNC_ERR_USER_DEFINE_START",
    "FLOW_FUNC_FAILED",
    "FLOW_FUNC_STATUS_EXIT",
    "FLOW_FUNC_STATUS_REDEPLOYING",
    "FLOW_FUNC_SUCCESS",
    "MSG_TYPE_PICKLED_MSG",
    "MSG_TYPE_RAW_MSG",
    "MSG_TYPE_TENSOR_DATA",
    "MSG_TYPE_TORCH_TENSOR_MSG",
    "MSG_TYPE_USER_DEFINE_START",
    "AffinityPolicy",
    "BalanceConfig",
    "FlowFlag",
    "FlowFuncLogLevel",
    "FlowFuncLogType",
    "FlowFuncLogger",
    "MsgType",
]


class FlowFlag(IntEnum):
    """Marks of a message, under the names of the C++ part."""

    FLOW_FLAG_EOS = 1
    FLOW_FLAG_SEG = 2


__getattr__ = missing_from(__name__)

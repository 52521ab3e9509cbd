"""What DataFlow's C++ part has for functions in stages and toprope.flow has too. Messages and contexts are made by the
stage alone, so that their classes cannot be called as those of the C++ part can.
"""

from enum import IntEnum

from toprope.compat.missing import missing_from
from toprope.flow.balance import AffinityPolicy
from toprope.flow.flow_func import *  # noqa: F403 - codes and message types
from toprope.flow.flow_func import __all__ as _names
from toprope.flow.func_log import FlowFuncLogger, FlowFuncLogLevel, FlowFuncLogType
from toprope.flow.messages import MsgType

__all__ = [
    *(each for each in _names if each.startswith(("FLOW_FUNC_", "MSG_TYPE_"))),
    "AffinityPolicy",
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

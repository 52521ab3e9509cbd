"""The interface of functions that see messages themselves: `import dataflow.flow_func as ff`.

    class Twice:
        @ff.init_wrapper()
        def init_flow_func(self, meta_params):
            return ff.FLOW_FUNC_SUCCESS

        @ff.proc_wrapper("i0,o0")
        def twice(self, run_context, input_flow_msgs):
            array = input_flow_msgs[0].get_tensor().numpy()
            return run_context.set_output(0, array * 2)  # 0 is the o0 of proc_wrapper

All public names and codes are those of CANN's `dataflow.flow_func`. `FuncProcessPoint` makes a stage of such a class by
`make_stage`, which is toprope's own. Tests: tests/flow/test_flow_func.py, tests/flow/test_flow_semantics.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from toprope.flow import running
from toprope.flow.exceptions import FLOW_FUNC_FAILED, DfAbortException, DfException
from toprope.flow.flow_info import MAX_USER_DATA_SIZE, FlowFlag
from toprope.flow.func_log import FlowFuncLogger, FlowFuncLogLevel, FlowFuncLogType, logger
from toprope.flow.stage.spec import StageContext, StageFunction, StageObject
from toprope.flow.tensor import Tensor, alloc_tensor
from toprope.flow.udf.func_register import FlowFuncInfos, FlowFuncRegister, read_ports
from toprope.flow.udf.messages import FlowMsg, MsgType
from toprope.flow.udf.queues import FlowMsgQueue
from toprope.flow.udf.routing import AffinityPolicy, BalanceConfig
from toprope.flow.udf.run_context import MetaRunContext, PyMetaParams

__all__ = [
    "DEBUG",
    "DEBUG_LOG",
    "ERROR",
    "FLOW_FLAG_EOS",
    "FLOW_FLAG_SEG",
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
    "INFO",
    "MAX_USER_DATA_SIZE",
    "MSG_TYPE_PICKLED_MSG",
    "MSG_TYPE_RAW_MSG",
    "MSG_TYPE_TENSOR_DATA",
    "MSG_TYPE_TORCH_TENSOR_MSG",
    "MSG_TYPE_USER_DEFINE_START",
    "RUN_LOG",
    "WARN",
    "AffinityPolicy",
    "BalanceConfig",
    "DfAbortException",
    "FlowFuncInfos",
    "FlowFuncLogger",
    "FlowFuncRegister",
    "FlowMsg",
    "FlowMsgQueue",
    "MetaRunContext",
    "MsgType",
    "PyMetaParams",
    "Tensor",
    "alloc_tensor",
    "init_wrapper",
    "logger",
    "proc_wrapper",
]

FLOW_FUNC_SUCCESS = 0
FLOW_FUNC_ERR_PARAM_INVALID = 164000
FLOW_FUNC_ERR_ATTR_NOT_EXITS = 164001
FLOW_FUNC_ERR_ATTR_TYPE_MISMATCH = 164002
FLOW_FUNC_ERR_TIME_OUT_ERROR = 564001
FLOW_FUNC_STATUS_REDEPLOYING = 564003
FLOW_FUNC_STATUS_EXIT = 564004
FLOW_FUNC_ERR_DRV_ERROR = 564100
FLOW_FUNC_ERR_MEM_BUF_ERROR = 564101
FLOW_FUNC_ERR_QUEUE_ERROR = 564102
FLOW_FUNC_ERR_EVENT_ERROR = 564103
FLOW_FUNC_ERR_USER_DEFINE_START = 9900000
FLOW_FUNC_ERR_USER_DEFINE_END = 9999999

FLOW_FLAG_EOS, FLOW_FLAG_SEG = FlowFlag.DATA_FLOW_FLAG_EOS, FlowFlag.DATA_FLOW_FLAG_SEG

MSG_TYPE_TENSOR_DATA = MsgType.MSG_TYPE_TENSOR_DATA
MSG_TYPE_RAW_MSG = MsgType.MSG_TYPE_RAW_MSG
MSG_TYPE_TORCH_TENSOR_MSG = MsgType.MSG_TYPE_TORCH_TENSOR_MSG
MSG_TYPE_PICKLED_MSG = MsgType.MSG_TYPE_PICKLED_MSG
MSG_TYPE_USER_DEFINE_START = MsgType.MSG_TYPE_USER_DEFINE_START

DEBUG_LOG, RUN_LOG = FlowFuncLogType.DEBUG_LOG, FlowFuncLogType.RUN_LOG
DEBUG, INFO, WARN, ERROR = FlowFuncLogLevel


def init_wrapper() -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate the method that is called once, with `PyMetaParams`, when the stage starts; it returns a code."""

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        function._df_init = True  # type: ignore[attr-defined]
        return function

    return decorated


def proc_wrapper(func_list: str | None = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a method that is called for each input, with `MetaRunContext` and a list of `FlowMsg`.

    Args:
        func_list: the inputs and outputs that it owns, such as "i0,i1,o0". Outputs may belong to several. None leaves
            that to `FlowFuncRegister`.

    Raises:
        DfException: the text is something else, or names one twice.
    """
    ports = None if func_list is None else read_ports(func_list)

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        if func_list is not None:
            function._df_ports = ports  # type: ignore[attr-defined]
            *_, owner, name = ["", *function.__qualname__.split(".")]
            if owner != "<locals>":  # such a class has no name of its own in its module
                FlowFuncRegister.register_flow_func(function.__module__, owner, name, func_list)
        return function

    return decorated


def functions_of(cls: type) -> tuple[StageFunction, ...]:
    """The methods of a class that `proc_wrapper` decorates or `FlowFuncRegister` names, in the order of that.

    Raises:
        DfException: inputs and outputs in the register cannot be read.
    """
    found: dict[str, StageFunction] = {}
    for base in reversed(cls.__mro__):
        for name, function in vars(base).items():
            if hasattr(function, "_df_ports"):
                found[name] = StageFunction(name, *function._df_ports)
    infos = FlowFuncRegister.get_flow_func_infos(cls.__module__, cls.__name__)
    if infos is not None and "<locals>" not in cls.__qualname__:
        found.update((each.name, each) for each in infos.functions() if hasattr(cls, each.name))
    return tuple(found.values())


def make_stage(
    instance: Any, listed: Sequence[StageFunction], params: Mapping[str, Any], closures: Mapping[str, Any],
    context: StageContext,
) -> StageObject:  # fmt: skip
    """The stage of an object, or of a class, whose functions see messages.

    Raises:
        DfException: its init_wrapper function returned another code than 0, which is the code.
    """
    running.enter(context)
    made = instance() if isinstance(instance, type) else instance
    for name in dir(type(made)):
        if getattr(getattr(type(made), name, None), "_df_init", False):
            code = getattr(made, name)(PyMetaParams(context, params))
            if code:
                raise DfException(f"{type(made).__name__}.{name} returned {code}", code)
    opened = {key: each.open(context) for key, each in closures.items()}
    functions = {
        each.name: running.inside(context, _Caller(getattr(made, each.name), each.outputs, opened, context.balance))
        for each in listed
    }

    def close() -> None:
        for each in opened.values():
            each.close()

    return StageObject(functions, close=close)


class _Caller:
    """Calls a function with its run context."""

    def __init__(
        self, function: Callable[..., Any], outputs: Sequence[int], closures: Mapping[str, Any], balance: str
    ) -> None:
        self._balance = balance
        self._function = function
        self._outputs = outputs
        self._closures = closures
        self.__name__ = getattr(function, "__name__", "function")

    def __call__(self, activation: Any) -> int:
        messages = [FlowMsg(each) for each in activation.inputs]
        code = self._function(MetaRunContext(activation, self._outputs, self._closures, self._balance), messages)
        return FLOW_FUNC_FAILED if type(code) is not int else code

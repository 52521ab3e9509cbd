"""The interface of functions that see messages themselves: `import dataflow.flow_func as ff`.

class Twice:
    @ff.init_wrapper()
    def init_flow_func(self, meta_params):
        return ff.FLOW_FUNC_SUCCESS

    @ff.proc_wrapper("i0,o0")
    def twice(self, run_context, input_flow_msgs):
        array = input_flow_msgs[0].get_tensor().numpy()
        return run_context.set_output(0, array * 2)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from toprope.flow import running
from toprope.flow.balance import AffinityPolicy, BalanceConfig
from toprope.flow.exceptions import FLOW_FUNC_FAILED, DfAbortException, DfException
from toprope.flow.func_log import FlowFuncLogger, logger
from toprope.flow.messages import FlowMsg, MsgType
from toprope.flow.meta import MetaRunContext, PyMetaParams
from toprope.flow.queues import FlowMsgQueue
from toprope.flow.stage_spec import StageContext, StageFunction, StageObject
from toprope.flow.tensor import Tensor, alloc_tensor

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
    "AffinityPolicy",
    "BalanceConfig",
    "DfAbortException",
    "FlowFuncLogger",
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

_PORT = re.compile(r"([io])(\d+)")


def init_wrapper() -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate the method that is called once, with `PyMetaParams`, when the stage starts; it returns a code."""

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        function._df_init = True  # type: ignore[attr-defined]
        return function

    return decorated


def proc_wrapper(func_list: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a method that is called for each input, with `MetaRunContext` and a list of `FlowMsg`.

    Args:
        func_list: the inputs and outputs that it owns, such as "i0,i1,o0". Outputs may belong to several.

    Raises:
        DfException: the text is something else, or names one twice.
    """
    ports: dict[str, list[int]] = {"i": [], "o": []}
    for each in func_list.split(","):
        match = _PORT.fullmatch(each.strip())
        if match is None:
            raise DfException(f"proc_wrapper takes inputs and outputs such as i0,i1,o0, got {func_list!r}")
        if int(match[2]) in ports[match[1]]:
            raise DfException(f"proc_wrapper got {each.strip()} twice in {func_list!r}")
        ports[match[1]].append(int(match[2]))

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        function._df_ports = (tuple(ports["i"]), tuple(ports["o"]))  # type: ignore[attr-defined]
        return function

    return decorated


def functions_of(cls: type) -> tuple[StageFunction, ...]:
    """The methods of a class that `proc_wrapper` decorates, in the order of their definition."""
    found: dict[str, StageFunction] = {}
    for base in reversed(cls.__mro__):
        for name, function in vars(base).items():
            if hasattr(function, "_df_ports"):
                found[name] = StageFunction(name, *function._df_ports)
    return tuple(found.values())


def make_stage(
    instance: Any, params: Mapping[str, Any], closures: Mapping[str, Any], context: StageContext
) -> StageObject:
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
                raise DfException(f"{type(made).__name__}.{name} returned {code}", code or FLOW_FUNC_FAILED)
    opened = {key: each.open(context) for key, each in closures.items()}
    functions = {
        each.name: running.inside(
            context, _Caller(getattr(made, each.name), len(each.outputs), opened, context.balance)
        )
        for each in functions_of(type(made))
    }

    def close() -> None:
        for each in opened.values():
            each.close()

    return StageObject(functions, close=close)


class _Caller:
    """Calls a function with what it may know."""

    def __init__(
        self, function: Callable[..., Any], output_num: int, closures: Mapping[str, Any], balance: str
    ) -> None:
        self._balance = balance
        self._function = function
        self._output_num = output_num
        self._closures = closures
        self.__name__ = getattr(function, "__name__", "function")

    def __call__(self, activation: Any) -> int:
        messages = [FlowMsg(each) for each in activation.inputs]
        code = self._function(MetaRunContext(activation, self._output_num, self._closures, self._balance), messages)
        return FLOW_FUNC_FAILED if type(code) is not int else code

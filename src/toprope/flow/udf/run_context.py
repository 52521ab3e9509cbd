"""Start parameters and run context, which functions of the UDF interface get in addition to messages.

For users; `flow_func` makes them in the stage's process. Methods and codes are those of CANN's `dataflow.flow_func`:
wrong use returns a code and logs why. What is sent is a new message, as a received one may be read elsewhere. Tests:
tests/flow/test_flow_func.py, tests/flow/test_flow_balance.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from toprope.flow.data_type import DType, numpy_type
from toprope.flow.exceptions import SUCCESS, UDF_PARAM_INVALID, DfException
from toprope.flow.flow_info import MAX_USER_DATA_SIZE
from toprope.flow.func_log import logger
from toprope.flow.registry import is_torch_tensor, wrap
from toprope.flow.stage.spec import EMPTY, RAW, TENSOR, TORCH, Head, Message, StageContext
from toprope.flow.tensor import Tensor, alloc_tensor
from toprope.flow.udf.messages import FlowMsg
from toprope.flow.udf.routing import BalanceConfig

__all__ = ["MetaRunContext", "PyMetaParams"]

_NO_SUCH, _OTHER_TYPE = 164001, 164002


class PyMetaParams:
    """Parameters of a stage at its start.

    Args:
        context: its location.
        params: the values of `FuncProcessPoint.set_init_param`.
    """

    def __init__(self, context: StageContext, params: Mapping[str, Any]) -> None:
        self._context = context
        self._params = params

    def get_name(self) -> str:
        """Name of the node."""
        return self._context.name

    def get_input_num(self) -> int:
        """Number of inputs of the node."""
        return self._context.input_num

    def get_output_num(self) -> int:
        """Number of outputs of the node."""
        return self._context.output_num

    def get_work_path(self) -> str:
        """The stage's folder."""
        return self._context.workspace

    def get_running_device_id(self) -> int:
        """The stage's card."""
        return self._context.device_id

    def get_running_instance_id(self) -> int:
        """Number of this instance of the stage."""
        return self._context.instance_id

    def get_running_instance_num(self) -> int:
        """Number of instances of the stage."""
        return self._context.instance_num

    def _get(self, name: str, kind: type, depth: int, empty: Any) -> tuple[int, Any]:
        if name not in self._params:
            return _NO_SUCH, empty
        value = self._params[name]
        return (SUCCESS, value) if _is(value, kind, depth) else (_OTHER_TYPE, empty)

    def get_attr_int(self, name: str) -> tuple[int, int]:
        """A code and the parameter; 164001 where there is none, 164002 where it is something else."""
        return self._get(name, int, 0, 0)

    def get_attr_int_list(self, name: str) -> tuple[int, list[int]]:
        """As `get_attr_int`."""
        return self._get(name, int, 1, [])

    def get_attr_int_list_list(self, name: str) -> tuple[int, list[list[int]]]:
        """As `get_attr_int`."""
        return self._get(name, int, 2, [])

    def get_attr_bool(self, name: str) -> tuple[int, bool]:
        """As `get_attr_int`."""
        return self._get(name, bool, 0, False)

    def get_attr_bool_list(self, name: str) -> tuple[int, list[bool]]:
        """As `get_attr_int`."""
        return self._get(name, bool, 1, [])

    def get_attr_float(self, name: str) -> tuple[int, float]:
        """As `get_attr_int`."""
        return self._get(name, float, 0, 0.0)

    def get_attr_float_list(self, name: str) -> tuple[int, list[float]]:
        """As `get_attr_int`."""
        return self._get(name, float, 1, [])

    def get_attr_str(self, name: str) -> tuple[int, str]:
        """As `get_attr_int`."""
        return self._get(name, str, 0, "")

    def get_attr_str_list(self, name: str) -> tuple[int, list[str]]:
        """As `get_attr_int`."""
        return self._get(name, str, 1, [])

    def get_attr_tensor_dtype(self, name: str) -> tuple[int, Any]:
        """As `get_attr_int`; a dtype is numpy's type, such as `numpy.int32`."""
        code, dtype = self._get(name, DType, 0, None)
        return code, None if dtype is None else numpy_type(dtype)

    def get_attr_tensor_dtype_list(self, name: str) -> tuple[int, list[Any]]:
        """As `get_attr_tensor_dtype`."""
        code, dtypes = self._get(name, DType, 1, [])
        return code, [numpy_type(each) for each in dtypes]


def _is(value: Any, kind: type, depth: int) -> bool:
    if depth:
        return isinstance(value, list) and all(_is(each, kind, depth - 1) for each in value)
    return type(value) is kind


class MetaRunContext:
    """Context of one call of a function: its outputs, models and metadata.

    Args:
        activation: the call (`toprope.flow.worker.calls.Activation`).
        outputs: numbers of the function's outputs, of those of its process point.
        closures: models and graphs that it may run, by their keys.
        balance: "scatter" or "gather" where its node may use BalanceConfig.
    """

    def __init__(self, activation: Any, outputs: Sequence[int], closures: Mapping[str, Any], balance: str = "") -> None:
        self._balance = balance
        self._activation = activation
        self._places = {number: place for place, number in enumerate(outputs)}
        self._closures = closures

    def alloc_tensor_msg(self, shape: list[int] | tuple[int, ...], dtype: Any, align: int = 64) -> FlowMsg:
        """A message with a tensor of zeros. Errors as of `alloc_tensor`."""
        return FlowMsg(Message(TENSOR, alloc_tensor(shape, dtype, align).numpy()))

    def alloc_raw_data_msg(self, size: int, align: int = 64) -> FlowMsg:
        """Allocate a message of this size, in bytes.

        Raises:
            DfException: the size is negative (164000).
        """
        if size < 0:
            raise DfException(f"a message cannot have {size} bytes", UDF_PARAM_INVALID)
        return FlowMsg(Message(RAW, bytearray(size)))

    def alloc_empty_data_msg(self, msg_type: int = TENSOR) -> FlowMsg:
        """A message without data."""
        return FlowMsg(Message(EMPTY))

    def to_flow_msg(self, tensor: Any) -> FlowMsg:
        """A message with a tensor, or with another value."""
        return FlowMsg(Message(*_wrapped(tensor)))

    def set_output(self, index: int, data: Any, balance_config: BalanceConfig | None = None) -> int:
        """Send an output.

        Args:
            index: which output of the process point: 1 is the o1 of `proc_wrapper`, in each of its functions.
            data: a FlowMsg, an array, or another value; None sends nothing.
            balance_config: which element of a matrix it is, which decides to which instance of the next stage it goes.

        Returns:
            0; 164000 where the function has no such output, the element was not said, or the node may not use this
            policy: NO_AFFINITY after `FlowNode.set_balance_scatter`, rows and columns after `set_balance_gather`.
        """
        return self.set_multi_outputs(index, [] if data is None else [data], balance_config)

    def set_multi_outputs(self, index: int, data: Sequence[Any], balance_config: BalanceConfig | None = None) -> int:
        """Send several outputs by one port. As `set_output`."""
        place = self._places.get(index)
        if place is None:
            listed = ", ".join(f"o{each}" for each in self._places) or "none"
            logger.error("output %s is not one of the function's outputs (%s)", index, listed)
            return UDF_PARAM_INVALID
        messages = [_message(each) for each in data]
        if messages and balance_config is not None:
            labels = balance_config.labels()
            why = balance_config.refusal(self._balance)
            if not why and len(labels) != len(data):
                why = f"{len(data)} outputs at {len(labels)} positions"
            if why:
                logger.error("set_output with a BalanceConfig: %s", why)
                return UDF_PARAM_INVALID
            for message, (data_label, route_label) in zip(messages, labels, strict=True):
                head = self._activation.head if message.head == Head() else message.head
                message.head = replace(head, data_label=data_label)
                message.route_label = route_label
        for message in messages:
            self._activation.set_output(place, message)
        return SUCCESS

    def run_flow_model(self, key: str, input_flow_msgs: Sequence[FlowMsg], timeout: int) -> tuple[int, list[FlowMsg]]:
        """Run a model or a graph, and wait for it.

        Args:
            key: as `add_invoked_closure` was given it.
            input_flow_msgs: a message for each of its inputs.
            timeout: milliseconds; -1 for ever.

        Returns:
            A code and the outputs: 0, 164000 where there is no such key, 564001 where the time is over, 564000 where
            it fails.
        """
        closure = self._closures.get(key)
        if closure is None:
            return UDF_PARAM_INVALID, []
        code, messages = closure.run([_message(each) for each in input_flow_msgs], timeout)
        return code, [FlowMsg(each) for each in messages]

    def get_user_data(self, size: int = MAX_USER_DATA_SIZE, offset: int = 0) -> bytearray:
        """Return the user's data of the input.

        Raises:
            DfException: the range exceeds the user's data (164000).
        """
        if size <= 0 or offset < 0 or size + offset > MAX_USER_DATA_SIZE:
            raise DfException(
                f"size {size} at offset {offset} is not within {MAX_USER_DATA_SIZE} bytes", UDF_PARAM_INVALID
            )
        return bytearray(self._activation.head.user_data.ljust(MAX_USER_DATA_SIZE, b"\0"))[offset : offset + size]

    def raise_exception(self, exception_code: int, user_context_id: int) -> int:
        """Give this input up; all stages and `fetch_data` are notified (needs `FlowGraph.set_exception_catch`)."""
        self._activation.raise_exception(exception_code, user_context_id)
        return SUCCESS

    def get_exception(self) -> tuple[bool, int, int]:
        """Take the report that another stage has given an input up: True if any, its code and context."""
        found: tuple[bool, int, int] = self._activation.take_exception()
        return found


def _wrapped(value: Any) -> tuple[int, Any]:
    import numpy

    if isinstance(value, Tensor | numpy.ndarray):
        return wrap(value if isinstance(value, Tensor) else Tensor(numpy.ascontiguousarray(value)))
    return (TORCH, value) if is_torch_tensor(value) else wrap(value)


def _message(value: Any) -> Message:
    """Return a new message to send, since a received one may be read elsewhere."""
    if isinstance(value, FlowMsg):
        found = value.message
        return Message(found.kind, found.payload, value.head, found.ret_code, route_label=value.route_label)
    return Message(*_wrapped(value))

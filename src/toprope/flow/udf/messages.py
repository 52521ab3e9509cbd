"""Messages of the UDF interface (`FlowMsg`), as its functions see them.

The run context makes one of each internal `Message` (`stage.spec`). Attributes and methods are those of CANN's
`dataflow.flow_func`. A change of a received message's metadata must not reach others: the head is a copy, and flags of
toprope's own are hidden. Tests: tests/flow/test_flow_func.py.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from toprope.flow.exceptions import UDF_PARAM_INVALID, DfException
from toprope.flow.stage.spec import EMPTY, FAILURE, OWN_FLAGS, PICKLED, RAW, TENSOR, TORCH, Head, Message
from toprope.flow.tensor import Tensor

__all__ = ["FlowMsg", "MsgType"]


class MsgType(IntEnum):
    """Types of messages; the user's own are 1024 and more."""

    MSG_TYPE_TENSOR_DATA = TENSOR
    MSG_TYPE_RAW_MSG = RAW
    MSG_TYPE_TORCH_TENSOR_MSG = TORCH
    MSG_TYPE_PICKLED_MSG = PICKLED
    MSG_TYPE_USER_DEFINE_START = 1024


class FlowMsg:
    """A message: data and metadata. Each value is an attribute, and also has get_... and set_... methods.

    Args:
        message: the internal message.
    """

    def __init__(self, message: Message) -> None:
        self.message = message
        self.head = Head(*(getattr(message.head, name) for name in Head.__slots__))
        self.route_label = 0

    @property
    def msg_type(self) -> int:
        """Its type; an empty message counts as a tensor."""
        kind = self.message.kind
        return TENSOR if kind in (EMPTY, FAILURE) else kind

    @msg_type.setter
    def msg_type(self, value: int) -> None:
        self.message.kind = value

    @property
    def ret_code(self) -> int:
        """0, or what went wrong with it."""
        return self.message.ret_code

    @ret_code.setter
    def ret_code(self, value: int) -> None:
        self.message.ret_code = value

    @property
    def start_time(self) -> int:
        """Milliseconds."""
        return self.head.start_time

    @start_time.setter
    def start_time(self, value: int) -> None:
        self.head.start_time = value

    @property
    def end_time(self) -> int:
        """Milliseconds."""
        return self.head.end_time

    @end_time.setter
    def end_time(self, value: int) -> None:
        self.head.end_time = value

    @property
    def flow_flags(self) -> int:
        """Of `FlowFlag`."""
        return self.head.flags & ~OWN_FLAGS

    @flow_flags.setter
    def flow_flags(self, value: int) -> None:
        self.head.flags = int(value) & ~OWN_FLAGS | self.head.flags & OWN_FLAGS

    @property
    def transaction_id(self) -> int:
        """Number of the graph's input that it belongs to."""
        return self.head.transaction_id

    @transaction_id.setter
    def transaction_id(self, value: int) -> None:
        self.head.transaction_id = value

    def set_route_label(self, route_label: int) -> None:
        """Choose the instance that it goes to: what has the same label and transaction goes to the same one."""
        self.route_label = route_label

    def get_tensor(self) -> Tensor | None:
        """Its tensor; None where it is empty.

        Raises:
            DfException: it holds something else (164000).
        """
        if self.message.kind == EMPTY:
            return None
        if self.message.kind == TORCH:
            return Tensor.over(self.message.payload.detach().cpu().numpy())
        if self.message.kind != TENSOR:
            raise DfException(f"a message of type {self.msg_type} holds no tensor", UDF_PARAM_INVALID)
        return Tensor.over(self.message.payload)

    def get_raw_data(self) -> memoryview:
        """Its bytes.

        Raises:
            DfException: it holds something else (164000).
        """
        if self.message.kind in (EMPTY, FAILURE, TORCH, PICKLED):
            raise DfException(f"a message of type {self.msg_type} holds no bytes", UDF_PARAM_INVALID)
        payload: Any = self.message.payload
        return memoryview(payload) if self.message.kind != TENSOR else memoryview(payload).cast("B")

    def get_msg_type(self) -> int:
        """Its type."""
        return self.msg_type

    def set_msg_type(self, value: int) -> None:
        """Set its type."""
        self.msg_type = value

    def get_ret_code(self) -> int:
        """0, or what went wrong with it."""
        return self.ret_code

    def set_ret_code(self, value: int) -> None:
        """Set what went wrong with it."""
        self.ret_code = value

    def get_start_time(self) -> int:
        """Milliseconds."""
        return self.start_time

    def set_start_time(self, value: int) -> None:
        """Set the milliseconds."""
        self.start_time = value

    def get_end_time(self) -> int:
        """Milliseconds."""
        return self.end_time

    def set_end_time(self, value: int) -> None:
        """Set the milliseconds."""
        self.end_time = value

    def get_flow_flags(self) -> int:
        """Of `FlowFlag`."""
        return self.flow_flags

    def set_flow_flags(self, value: int) -> None:
        """Set the flags."""
        self.flow_flags = value

    def get_transaction_id(self) -> int:
        """Number of the graph's input that it belongs to."""
        return self.transaction_id

    def set_transaction_id(self, value: int) -> None:
        """Set which input of the graph it belongs to."""
        self.transaction_id = value

"""Facade module `dataflow.utils.utils`: DataFlow's exceptions, and the card and instance that a stage runs as.

The names are DataFlow's. The answers come from toprope.flow.running; the setters change this process only. Tests:
tests/flow/test_flow_func.py.
"""

from typing import Any

from toprope.compat.missing import missing_from
from toprope.flow import (
    DfAbortException,
    DfException,
    get_running_device_id,
    get_running_instance_id,
    get_running_instance_num,
    msg_type_register,
)
from toprope.flow.points.signature import input_count as get_param_count
from toprope.flow.registry import MsgTypeRegister, unwrap
from toprope.flow.running import is_stage, set_running
from toprope.flow.udf.messages import FlowMsg

__all__ = [
    "DfAbortException",
    "DfException",
    "convert_flow_msg_to_object",
    "get_msg_type_register",
    "get_param_count",
    "get_running_device_id",
    "get_running_in_udf",
    "get_running_instance_id",
    "get_running_instance_num",
    "set_running_device_id",
    "set_running_instance_id",
    "set_running_instance_num",
]


def set_running_device_id(running_device_id: int) -> None:
    """Set the card that `get_running_device_id` answers in this process."""
    set_running(device_id=running_device_id)


def set_running_instance_id(running_instance_id: int) -> None:
    """Set the instance that `get_running_instance_id` answers in this process."""
    set_running(instance_id=running_instance_id)


def set_running_instance_num(running_instance_num: int) -> None:
    """Set the number of instances that `get_running_instance_num` answers in this process."""
    set_running(instance_num=running_instance_num)


def get_running_in_udf() -> bool:
    """Ask whether a stage runs in this process."""
    return is_stage()


def get_msg_type_register() -> MsgTypeRegister:
    """The types of messages of this process."""
    return msg_type_register


def convert_flow_msg_to_object(flow_msg: FlowMsg) -> Any:
    """The value of a message."""
    return unwrap(flow_msg.message.kind, flow_msg.message.payload)


__getattr__ = missing_from(__name__)

"""Conversion of fed values into messages, and of messages into fetched values.

`FlowGraph` and `futures` call it in the program's process; stages convert by `worker.calls`. Types and codes are those
of CANN's dataflow API (`flow.exceptions`). The service takes the stage's name from the note that `failure_error` adds,
so the form of the note is fixed; other messages are free. Tests: tests/flow/test_flow_graph.py,
tests/flow/test_flow_assertions.py, tests/flow/test_flow_info.py, tests/flow/test_serve_graph.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toprope.flow.exceptions import DATATYPE_INVALID, PARAM_INVALID, DfException
from toprope.flow.flow_info import FlowInfo
from toprope.flow.graph.nodes import FlowData, Plan
from toprope.flow.registry import is_torch_tensor, unwrap, wrap
from toprope.flow.stage.spec import EMPTY, OWN_FLAGS, TENSOR, TORCH, Failure, Head, Message
from toprope.flow.tensor import Tensor

__all__ = ["any_message", "failure_error", "head_of", "info_of", "tensor_message", "tensor_of", "value_of", "values_of"]


def head_of(info: FlowInfo | None) -> Head:
    """Build a message's head from the user's flow info."""
    if info is None:
        return Head()
    return Head(
        info.transaction_id, info.start_time, info.end_time, info.flow_flags,
        bytes(info.user_data[: info.data_size]), info.data_size,
    )  # fmt: skip


def info_of(head: Head) -> FlowInfo:
    """Build the user's flow info from a message's head."""
    info = FlowInfo(head.start_time, head.end_time, head.flags & ~OWN_FLAGS, head.transaction_id)
    if head.user_data:
        info.set_user_data(head.user_data)
    return info


def values_of(plan: Plan, feed: Any, partial: bool) -> dict[int, tuple[FlowData, Any]]:
    """Return the fed values by index of the graph's inputs; unknown keys are ignored.

    Raises:
        DfException: it is no dict, has none of the inputs, or not all of them.
    """
    if not isinstance(feed, Mapping):
        raise DfException(f"feed_dict must be a dict, got {type(feed).__name__}")
    found = {place: (each, feed[each]) for place, each in enumerate(plan.inputs) if each in feed}
    if not found:
        raise DfException(f"feed_dict has none of the inputs {', '.join(each.name for each in plan.inputs)}")
    missing = [each.name for place, each in enumerate(plan.inputs) if place not in found]
    if missing and not partial:
        raise DfException(f"feed_dict lacks {', '.join(missing)}")
    return found


def tensor_message(data: FlowData, value: Any, head: Head) -> Message:
    """A value as a tensor that fits the input's schema.

    Raises:
        DfException: it does not, or is no tensor (145021, 145022).
    """
    tensor = value if isinstance(value, Tensor) and data.schema is None else Tensor(value, tensor_desc=data.schema)
    return Message(*wrap(tensor), head)


def any_message(data: FlowData, value: Any, head: Head) -> Message:
    """Any value as a message.

    Raises:
        DfException: a Tensor that does not fit the input's schema.
        TypeError: a torch.Tensor that is not on the CPU.
        Whatever a serializer raises.
    """
    if isinstance(value, Tensor) and data.schema is not None and not _fits(value, data):
        raise DfException(f"{data.name} takes {data.schema!r}, got {value.tensor_desc!r}")
    kind, payload = wrap(value)
    if kind == TORCH and payload.device.type != "cpu":
        raise TypeError(f"the tensor for {data.name} is on {payload.device}, please to cpu: tensor.cpu()")
    return Message(kind, payload, head)


def _fits(tensor: Tensor, data: FlowData) -> bool:
    desc, schema = tensor.tensor_desc, data.schema
    assert schema is not None
    if desc.dtype != schema.dtype or len(desc.shape) != len(schema.shape):
        return False
    return all(wanted < 0 or wanted == side for wanted, side in zip(schema.shape, desc.shape, strict=True))


def value_of(message: Message) -> Any:
    """The value of a message, for `fetch`. Errors as of `unwrap`."""
    return unwrap(message.kind, message.payload)


def tensor_of(message: Message) -> Tensor | None:
    """The tensor of a message, for `fetch_data`; None where it is empty.

    Raises:
        DfException: it holds none.
    """
    if message.kind == EMPTY:
        return None
    if message.kind == TENSOR:
        return Tensor.over(message.payload)
    value = value_of(message)
    if is_torch_tensor(value):
        import torch

        if value.dtype is torch.bfloat16:
            raise DfException("numpy has no bfloat16: use fetch", DATATYPE_INVALID)
        return Tensor.over(value.detach().cpu().contiguous().numpy())
    try:
        return Tensor(value)
    except DfException as error:
        raise DfException(f"an output is no tensor, use fetch: {error.message}", PARAM_INVALID) from error


def failure_error(failure: Failure, transaction: int) -> BaseException:
    """Return the error that the user's code raised for an input, with its origin as a note."""
    error = failure.error
    notes = getattr(error, "__notes__", [])
    where = f"raised in stage {failure.stage} for input {transaction}" if failure.stage else f"for input {transaction}"
    text = f"{where}:\n{failure.traceback}".rstrip(":\n")
    if text not in notes:
        error.add_note(text)
    return error

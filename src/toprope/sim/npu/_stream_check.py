"""Stream mode of torch_npu's sanitizer: data races between streams, and tensors freed while another stream uses them.

_sanitizer.py switches it on. torch's own detector for CUDA (`torch.cuda._sanitizer`) keeps the vector clocks of the
streams; the operators come from a dispatch mode, and so do allocations: an output whose storage was not seen before.
Interface: `_stream_check.py` of torch_npu. Tests: tests/sim/simulated/test_sanitizer.py.
"""

from __future__ import annotations

import re
import sys
import traceback
import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.cuda._sanitizer as csan
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from toprope.sim.npu._state import one_module
from toprope.sim.npu.streams import current_stream

__all__ = ["MissingRecordStreamError", "NPURecordStreamHandler", "NPUSanitizerDispatchMode"]

one_module(__name__)

_FACTORY = re.compile("(new_.*|.*_like)")
"""Operators that read no element of the tensor they are given."""


@dataclass
class CrossStreamUsage:
    """The last use of a tensor on a stream that is not the one it was allocated on."""

    usage_stream: int
    seq_num: int
    operator: str
    stack_trace: traceback.StackSummary


@dataclass
class NPUTensorInfo:
    """The stream that allocated a tensor's memory, and those that used it."""

    allocation_stream: int | None = None
    allocation_stack_trace: traceback.StackSummary | None = None
    recorded_streams: set[int] = field(default_factory=set)
    cross_stream_usages: dict[int, CrossStreamUsage] = field(default_factory=dict)


class MissingRecordStreamError(csan.SynchronizationError):
    """A tensor may be freed while a stream that `record_stream` was not called for still uses it.

    Attributes:
        data_ptr: address of its memory.
        allocation_stream: handle of the stream it was allocated on.
        usage_stream: handle of the stream that used it.
        usage: operator and place of the last use.
    """

    def __init__(self, data_ptr: int, info: NPUTensorInfo, usage: CrossStreamUsage) -> None:
        super().__init__()
        self.data_ptr = data_ptr
        self.allocation_stream = info.allocation_stream
        self.allocation_stack_trace = info.allocation_stack_trace
        self.usage_stream = usage.usage_stream
        self.usage = usage
        self.recorded_streams = set(info.recorded_streams)

    def __str__(self) -> str:
        lines = [
            "NPUSanitizer: missing record_stream detected!",
            f"looked at: memory at {self.data_ptr:#x}, allocated on stream {self.allocation_stream}, used on stream"
            f" {self.usage_stream} by {self.usage.operator}",
            "do: call tensor.record_stream(stream), or let the first stream wait for the second before it is freed",
            "used at:",
            "".join(self.usage.stack_trace.format()),
        ]
        if self.allocation_stack_trace is not None:
            lines += ["allocated at:", "".join(self.allocation_stack_trace.format())]
        return "\n".join(lines)


class NPURecordStreamHandler(csan.EventHandler):
    """Vector clocks of the streams, and the tensors that other streams use.

    Whether `record_stream` is missing is decided when the memory is freed: by then the stream that allocated it may
    have waited for the one that used it.

    Attributes:
        record_stream_errors: those found so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self._npu_tensors: dict[int, NPUTensorInfo] = {}
        self.record_stream_errors: list[MissingRecordStreamError] = []

    def _handle_memory_allocation(self, data_ptr: int) -> None:
        super()._handle_memory_allocation(data_ptr)
        self._npu_tensors[data_ptr] = NPUTensorInfo(
            int(current_stream().npu_stream), self.tensors_accessed.get_allocation_stack_trace(data_ptr)
        )

    def _handle_memory_deallocation(self, data_ptr: int) -> None:
        self._report(data_ptr)
        self._npu_tensors.pop(data_ptr, None)
        super()._handle_memory_deallocation(data_ptr)

    def _handle_kernel_launch(
        self, stream: int, read_only: set[int], read_write: set[int], outputs: set[int], operator: str,
        tensor_aliases: dict[int, list[str]], storage_dataptrs_accessed: set[int] | None = None,
    ) -> list[csan.SynchronizationError]:  # fmt: skip
        errors = super()._handle_kernel_launch(stream, read_only, read_write, outputs, operator, tensor_aliases)
        accessed = read_only | read_write if storage_dataptrs_accessed is None else storage_dataptrs_accessed
        for data_ptr in accessed:
            info = self._npu_tensors.get(data_ptr)
            if info is not None and info.allocation_stream not in (None, stream):
                trace = traceback.StackSummary.extract(traceback.walk_stack(None), lookup_lines=False)
                trace.reverse()
                info.cross_stream_usages[stream] = CrossStreamUsage(stream, self.seq_num, operator, trace)
        return errors

    def _handle_record_stream(self, data_ptr: int, stream: int) -> None:
        self._npu_tensors.setdefault(data_ptr, NPUTensorInfo()).recorded_streams.add(stream)

    def _handle_erase_stream(self, data_ptr: int, stream: int) -> None:
        if data_ptr in self._npu_tensors:
            self._npu_tensors[data_ptr].recorded_streams.discard(stream)

    def _report(self, data_ptr: int) -> list[MissingRecordStreamError]:
        info = self._npu_tensors.get(data_ptr)
        if info is None or info.allocation_stream is None:
            return []
        waited_for = self.syncs.current_sync_states.get(info.allocation_stream, {})
        errors = [
            MissingRecordStreamError(data_ptr, info, usage)
            for stream, usage in info.cross_stream_usages.items()
            if stream not in info.recorded_streams and waited_for.get(stream, -1) < usage.seq_num
        ]
        for error in errors:
            sys.stderr.write(f"{error}\n")
        self.record_stream_errors += errors
        return errors

    def flush_record_stream_warnings(self) -> list[MissingRecordStreamError]:
        """Check all tensors that are alive now, as if they were freed."""
        return [error for data_ptr in [*self._npu_tensors] for error in self._report(data_ptr)]


class NPUArgumentHandler:
    """The addresses that an operator reads and writes."""

    def __init__(self) -> None:
        self.dataptrs_read: set[int] = set()
        self.dataptrs_written: set[int] = set()
        self.outputs: set[int] = set()
        self.tensor_aliases: dict[int, list[str]] = {}
        self.storage_dataptrs_accessed: set[int] = set()

    def _take(self, value: Any, name: str | None, is_write: bool, is_output: bool = False) -> None:
        if not isinstance(value, torch.Tensor) or not value.is_npu:  # type: ignore[attr-defined]
            return
        data_ptr = value.data_ptr() or id(value)
        (self.dataptrs_written if is_write else self.dataptrs_read).add(data_ptr)
        names = self.tensor_aliases.setdefault(data_ptr, [])
        if name is not None:
            names.append(name)
        if is_output:
            self.outputs.add(data_ptr)
        if storage := value.untyped_storage().data_ptr():
            self.storage_dataptrs_accessed.add(storage)

    def parse_inputs(self, schema: Any, args: Any, kwargs: Any, *, is_factory: bool = False) -> None:
        """Take in the arguments. Views, and the tensors of factories, access no element."""
        for argument, value in csan.zip_arguments(schema, args, kwargs):
            writes = argument.alias_info is not None and argument.alias_info.is_write
            if not is_factory and (argument.alias_info is None or writes):
                for each in pytree.tree_leaves(value):
                    self._take(each, argument.name, writes)

    def parse_outputs(self, schema: Any, outputs: Any, *, is_factory: bool = False) -> None:
        """Take in the results; views are no access."""
        for result, value in zip(schema.returns, (outputs,), strict=False):
            if result.alias_info is None or result.alias_info.is_write:
                for each in pytree.tree_leaves(value):
                    self._take(each, None, True, is_output=True)


class NPUSanitizerDispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Report the operators of a program to a handler.

    Raises:
        torch.cuda._sanitizer.CUDASanitizerErrors: an operator races with one of another stream.
    """

    def __init__(self, event_handler: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.event_handler = event_handler
        self.args_handler: Any = None
        self._storages: dict[int, weakref.finalize[Any, Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the operator and check what it touched."""
        kwargs = kwargs or {}
        if "record_stream" in func.__name__:
            tensor, stream = args
            self.event_handler._handle_record_stream(tensor.untyped_storage().data_ptr(), int(stream.native_handle))
            return func(*args, **kwargs)
        is_factory = bool(_FACTORY.match(func._schema.name))
        self.args_handler = NPUArgumentHandler()
        self.parse_inputs(func._schema, args, kwargs, is_factory=is_factory)
        outputs = func(*args, **kwargs)
        for each in pytree.tree_leaves(outputs):
            self._find_allocation(each)
        self.parse_outputs(func._schema, outputs, is_factory=is_factory)
        if self.args_handler.dataptrs_read or self.args_handler.dataptrs_written:
            self.check_errors(func, int(current_stream().npu_stream))
        return outputs

    def _find_allocation(self, value: Any) -> None:
        if not isinstance(value, torch.Tensor) or not value.is_npu:  # type: ignore[attr-defined]
            return
        storage = value.untyped_storage()
        address = storage.data_ptr()
        if address and address not in self._storages:
            self.event_handler._handle_memory_allocation(address)
            self._storages[address] = end = weakref.finalize(storage, self._forget, address)
            end.atexit = False

    def _forget(self, address: int) -> None:
        del self._storages[address]
        self.event_handler._handle_memory_deallocation(address)

    def parse_inputs(self, schema: Any, args: Any, kwargs: Any, is_factory: bool = False) -> None:
        """Take in the arguments of the operator."""
        self.args_handler.parse_inputs(schema, args, kwargs, is_factory=is_factory)

    def parse_outputs(self, schema: Any, outputs: Any, is_factory: bool = False) -> None:
        """Take in the results of the operator."""
        self.args_handler.parse_outputs(schema, outputs, is_factory=is_factory)

    def check_errors(self, func: Any, npu_stream: int) -> None:
        """Report the operator, and raise what is wrong with it."""
        seen = self.args_handler
        errors = self.event_handler._handle_kernel_launch(
            npu_stream, seen.dataptrs_read - seen.dataptrs_written, seen.dataptrs_written, seen.outputs,
            str(func._schema), seen.tensor_aliases, storage_dataptrs_accessed=seen.storage_dataptrs_accessed,
        )  # fmt: skip
        if errors:
            for error in errors:
                sys.stderr.write(f"{error}\n")
            raise csan.CUDASanitizerErrors(errors)

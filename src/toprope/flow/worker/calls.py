"""Calls of a stage's functions, and their context objects.

`worker.loop` has an input and calls; here values are taken out of messages and results become messages. The functions
come from `flow.points`, by way of `stage.spec.StageObject`. Users see the rules: an `npu_model` gets and returns
tensors on its own device, the results of one call are sent all or not at all, and a batch that raises is called again
with each input alone. Tests: tests/flow/test_flow_run.py, tests/flow/test_serve_graph.py.
"""

from __future__ import annotations

import inspect
import queue
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from toprope.flow.exceptions import DfAbortException, DfException
from toprope.flow.stage.spec import (
    EMPTY,
    MORE,
    TENSOR,
    TORCH,
    Head,
    Message,
    StageFunction,
    StageObject,
)
from toprope.flow.worker.dynamic_batch import chunks, rows_of

if TYPE_CHECKING:
    from toprope.flow.edge.connections import Connections
    from toprope.flow.edge.links import InQueue

__all__ = ["Activation", "Cancelled", "InputQueue", "Made", "Python", "Stopped"]

Made = list[tuple[int, int, Any]] | BaseException
"""Results of one input: output, kind and payload of each message, or the error that it failed with."""


class Cancelled(DfException):
    """The receiver of an input's results has given up."""

    def __init__(self) -> None:
        super().__init__("the request was cancelled: its client has gone, or its deadline has passed")


class Stopped(DfAbortException):
    """Raised in a stage's thread when the graph ends."""

    def __init__(self) -> None:
        super().__init__("the graph ends")


class InputQueue:
    """An input of a function with stream input, which takes any number of messages."""

    def __init__(self, connections: Connections, queue_: InQueue, pass_on: Callable[[Message], None]) -> None:
        self._connections = connections
        self._queue = queue_
        self._pass_on = pass_on

    def get(self, timeout: float | None = None) -> Message:
        """The next message.

        Args:
            timeout: seconds; None for ever, 0 not to wait.

        Raises:
            queue.Empty: there is none within this time.
            Stopped: the graph ends.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            if timeout == 0:
                self._look()
            if not self._connections.wait(lambda: len(self._queue) > 0, until):
                raise queue.Empty
            message = self._queue.take()
            if not message.failed:
                return message
            self._pass_on(message)  # it fails alone

    def qsize(self) -> int:
        """Number of messages that are there."""
        self._look()
        return len(self._queue)

    def _look(self) -> None:
        """Read the available messages."""
        looked = False

        def once() -> bool:
            nonlocal looked
            looked, before = True, looked
            return before or len(self._queue) > 0

        self._connections.wait(once, time.monotonic() + 0.001)


class Activation:
    """One call of a function of kind "messages".

    Attributes:
        inputs: the messages; none of them where the function is called for the sake of an exception.
        head: the head that its outputs inherit.
        exception: code and context of an exception that another stage has raised, with its transaction; reading it
            with `take_exception` clears it.
    """

    def __init__(
        self, inputs: list[Message], head: Head, send: Callable[[int, Message], None],
        raise_: Callable[[int, int], None], exception: tuple[int, int] | None = None,
    ) -> None:  # fmt: skip
        self.inputs = inputs
        self.head = head
        self._send = send
        self._raise = raise_
        self.exception = exception

    def set_output(self, index: int, message: Message) -> None:
        """Send a message; one whose head says nothing inherits the head of the first input.

        Args:
            index: of the function's own outputs.
            message: the message.

        Raises:
            DfException: there is no such output.
        """
        if message.head == Head():
            message.head = self.head
        self._send(index, message)

    def raise_exception(self, code: int, context_id: int) -> None:
        """Give this transaction up, and report that to all stages and `fetch`."""
        self._raise(code, context_id)

    def take_exception(self) -> tuple[bool, int, int]:
        """Take an exception of another stage: true if there is one, its code and context."""
        found, self.exception = self.exception, None
        return (False, 0, 0) if found is None else (True, *found)


class Python:
    """Calls a function with values, and makes messages of what it returns.

    Args:
        function: its description.
        made: what runs in the stage.
        device: of an "npu" stage, whose values are tensors there; None else.
        stop: in a graph that replies, called with the transaction between two results of a generator; it raises what
            ends the call.
    """

    def __init__(
        self, function: StageFunction, made: StageObject, device: Any = None,
        stop: Callable[[int], None] | None = None,
    ) -> None:  # fmt: skip
        self._generates = function.generates
        self._stop = stop
        self._call = made.functions[function.name]
        self._made = made
        self._count = len(function.outputs)
        self._choice = function.choice or (None,) * self._count
        self._is_simple = self._choice == (None,)
        self._device = None if device is None else _tensor_device(device.torch_device)

    def run(self, messages: list[Message], send: Callable[[int, Message], None]) -> None:
        """Call the function once, with the values of one message for each input.

        Raises:
            Whatever it raises; DfException where what it returns cannot be sent.
        """
        head = messages[0].head
        if self._device is not None and any(each.kind == EMPTY for each in messages):
            for index in range(self._count):  # the end of a sequence is no tensor
                send(index, Message(EMPTY, None, head))
            return
        result = self._call(*map(self._value, messages))
        if not inspect.isgenerator(result) or self._device is not None:
            self._send(result, head, send)
        elif self._stop is None:
            for each in result:
                self._send(each, head, send)
        else:
            self._generate(result, head, send)

    def _generate(self, results: Any, head: Head, send: Callable[[int, Message], None]) -> None:
        """Send the results of a generator, each marked as one of several."""
        assert self._stop is not None
        if not self._generates:
            results.close()
            raise DfException("it returned a generator and is no generator function itself: write `yield from` in it")
        head = Head(*(getattr(head, each) for each in Head.__slots__))
        head.flags |= MORE
        try:
            for each in results:
                self._stop(head.transaction_id)
                self._send(each, head, send)
        finally:
            results.close()

    # Batches

    def batch(self, inputs: list[list[Message]], most: int) -> list[Made]:
        """Call it for several inputs at once; one that fails does not fail the others.

        A batch that raises is called again with each of its inputs alone, and so is a batch of tensors whose result has
        not one row for each row of its inputs.

        Args:
            inputs: one message for each parameter, for each input.
            most: inputs, or rows of tensors, of one call.
        """
        found: list[Made | None] = [None] * len(inputs)
        values: list[list[Any]] = [[] for _ in inputs]
        for number, messages in enumerate(inputs):
            try:
                if self._device is not None and any(each.kind == EMPTY for each in messages):
                    found[number] = [(index, EMPTY, None) for index in range(self._count)]
                else:
                    values[number] = [self._value(each) for each in messages]
            except Stopped:
                raise
            except BaseException as error:
                found[number] = error
        left = [number for number, known in enumerate(found) if known is None]
        for chunk in chunks([self._key(values[each]) for each in left], most):
            numbers = [left[each] for each in chunk]
            for number, made in zip(numbers, self._batched([values[each] for each in numbers]), strict=True):
                found[number] = made
        return found  # type: ignore[return-value]

    def _key(self, values: list[Any]) -> tuple[Any, int] | None:
        if self._device is None:
            return None, 1
        rows = rows_of(values)
        return None if rows is None else (tuple((each.dtype, tuple(each.shape[1:])) for each in values), rows)

    def _batched(self, values: list[list[Any]]) -> list[Made]:
        is_one = len(values) == 1
        try:
            if self._device is None:
                return self._of_lists(values)
            return [self._made_of(self._call(*values[0]))] if is_one else self._of_rows(values)
        except Stopped:
            raise
        except BaseException as error:
            if is_one:
                return [error]
        return [self._batched([each])[0] for each in values]

    def _of_rows(self, values: list[list[Any]]) -> list[Made]:
        """Results of one call with tensors joined along their first axis, split along it."""
        import torch

        rows = [len(each[0]) for each in values]
        joined = [torch.cat(column) for column in zip(*values, strict=True)]
        results = [self._checked(each) for each in self._tuple(self._call(*joined))]
        for each in results:
            if not each.ndim or len(each) != sum(rows):
                raise DfException(
                    f"a batch of {sum(rows)} rows was made into a result of shape {tuple(each.shape)}, which cannot be "
                    "split back"
                )
        split = [each.split(rows) for each in results]
        return [self._made_of(tuple(each) if len(each) > 1 else each[0]) for each in zip(*split, strict=True)]

    def _of_lists(self, values: list[list[Any]]) -> list[Made]:
        """Results of one call with a list for each parameter."""
        results = self._tuple(self._call(*([*column] for column in zip(*values, strict=True))))
        for each in results:
            if not isinstance(each, list | tuple) or len(each) != len(values):
                got = f"{type(each).__name__} of {len(each)}" if isinstance(each, list | tuple) else type(each).__name__
                wrong = DfException(
                    f"a function with batch is given lists, here of {len(values)} values, and must return a list of as "
                    f"many, got {got}"
                )
                return [wrong] * len(values)
        found: list[Made] = []
        for row in zip(*results, strict=True):
            failed = [each for each in row if isinstance(each, BaseException)]
            try:
                found.append(failed[0] if failed else self._made_of(row if len(row) > 1 else row[0]))
            except BaseException as error:  # of a serializer
                found.append(error)
        return found

    def _made_of(self, result: Any) -> Made:
        return [(index, *self._wrapped(value)) for index, value in self._results(result)]

    def stream(self, queues: list[InputQueue], send: Callable[[int, Message], None], head: Callable[[], Head]) -> None:
        """Call it once with queues. Errors as of `run`."""
        wrap = self._made.queue or (lambda each: each)
        result = self._call(*map(wrap, queues))
        for each in result if inspect.isgenerator(result) else (result,):
            self._send(each, head(), send)

    def _value(self, message: Message) -> Any:
        kind, payload = message.kind, message.payload
        if self._device is None:
            return self._made.unwrap(kind, payload)
        if kind == TENSOR:
            import torch

            kind, payload = TORCH, torch.from_numpy(_writable(payload, copies=self._device.type == "cpu"))
        if kind != TORCH:
            raise DfException(f"an input of an npu_model must be a tensor, got {type(payload).__name__}")
        return payload.to(self._device)

    def _send(self, result: Any, head: Head, send: Callable[[int, Message], None]) -> None:
        if self._is_simple:
            kind, payload = self._wrapped(result)
            send(0, Message(kind, payload, head))
            return
        # all of them are looked at before the first goes out: what belongs together comes whole or fails whole
        for index, kind, payload in [(index, *self._wrapped(value)) for index, value in self._results(result)]:
            send(index, Message(kind, payload, head))

    def _wrapped(self, value: Any) -> tuple[int, Any]:
        return self._made.wrap(value) if self._device is None else (TORCH, self._checked(value))

    def _results(self, result: Any) -> Iterator[tuple[int, Any]]:
        for index, value in enumerate(self._tuple(result)):
            chosen = self._choice[index]
            if chosen is None or chosen(value):
                yield index, value

    def _tuple(self, result: Any) -> tuple[Any, ...]:
        """The returned values, one for each output.

        Raises:
            DfException: it is no tuple of as many.
        """
        if self._count <= 1:
            return (result,) * self._count
        if not isinstance(result, tuple) or len(result) != self._count:
            got = f"a tuple of {len(result)}" if isinstance(result, tuple) else type(result).__name__
            raise DfException(f"it has {self._count} outputs and must return a tuple of as many, got {got}")
        return result

    def _checked(self, value: Any) -> Any:
        import torch

        if not isinstance(value, torch.Tensor):
            raise DfException(f"an output of an npu_model must be a tensor, got {type(value).__name__}")
        if value.device != self._device:
            raise DfException(f"an output of an npu_model must be on {self._device}, it is on {value.device}")
        return value.detach().contiguous()


def _writable(array: Any, *, copies: bool) -> Any:
    """An array that torch takes without a warning.

    Args:
        array: of an input; where it is read-only, others may read the same memory.
        copies: whether it may be written to, and so must be the stage's own; else it is only read.
    """
    if array.flags.writeable:
        return array
    if not copies:
        found = array.view()
        try:
            found.flags.writeable = True
        except ValueError:  # it lies in bytes
            return array.copy()
        return found
    return array.copy()


def _tensor_device(device: Any) -> Any:
    """A device as tensors name it: the CPU has no number there."""
    import torch

    return torch.device("cpu") if device.type == "cpu" else device

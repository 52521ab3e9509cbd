"""A stage of a process, and the loop of each of its functions: gather, run, send, again.

`worker.process` runs it, one thread for each function. It joins `input_matching`, `dynamic_batch`, `calls` and the
links of `flow.edge`; order, deadlines, cancelled inputs, streams and failures are decided here. Rules: an input that
fails fails alone, senders keep an input until its results have left the process, and waiting for room does not count
as work on the input (the driver kills by that time). Tests: tests/flow/test_flow_run.py,
tests/flow/test_serve_graph.py, tests/flow/test_flow_faults.py.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from toprope.flow.edge.codec import Codec
from toprope.flow.edge.connections import Connections, Kind
from toprope.flow.edge.links import InQueue, OutLink
from toprope.flow.exceptions import FLOW_FUNC_FAILED, USER_RAISE_EXCEPTION, DfException, as_exception
from toprope.flow.stage.plan import DRIVER, StagePlan
from toprope.flow.stage.spec import EMPTY, END, FAILURE, MORE, TORCH, Failure, Head, Message, StageFunction, StageObject
from toprope.flow.stage.status import SINCE, TRANSACTION, Recorder, Status
from toprope.flow.worker.batch import batcher
from toprope.flow.worker.calls import (
    Activation,
    Cancelled,
    InputQueue,
    Made,
    Python,
    Stopped,
)
from toprope.flow.worker.dynamic_batch import Collector
from toprope.flow.worker.input_matching import Align, Gather, Group, Order, Source

__all__ = ["Loop", "Outlet", "Stage", "Status"]

_REMEMBERED = 1024
"""Number of remembered transactions with exceptions, and of cancelled ones."""

_LOOK_NS = 2_000_000
"""Interval of a replying stage's checks for cancelled inputs."""


class Outlet:
    """An output of a stage: where its messages go.

    Args:
        targets: for each edge the instances of its target, in other processes or in this one.
    """

    def __init__(self, connections: Connections, codec: Codec, targets: Sequence[Sequence[OutLink | InQueue]]) -> None:
        self._connections = connections
        self._codec = codec
        self._targets = targets
        self.waited_ns = 0
        """Time that messages have waited for room."""
        self.leaves = any(isinstance(each, OutLink) for row in targets for each in row)

    def send(self, message: Message) -> None:
        """Send a message to each target; waits where there is no room.

        Raises:
            Whatever pickling raises.
        """
        number = message.head.transaction_id + (message.route_label or 1) - 2
        rows = self._targets
        if len(rows) == 1:
            row = rows[0]
            self._send(message, row[0] if len(row) == 1 else row[number % len(row)])
            return
        chosen = [row[number % len(row)] for row in rows]
        if message.kind != TORCH:
            links = [each for each in chosen if isinstance(each, OutLink)]
            sealed = self._codec.seal(message, len(links), on_host=True) if links else None
            for place, link in enumerate(links):
                if not link.is_free():
                    self._wait(link)
                link.send(sealed, place)  # type: ignore[arg-type]
            chosen = [each for each in chosen if not isinstance(each, OutLink)]
        for place, each in enumerate(chosen):
            own = message
            if place and message.kind == TORCH:  # a stage may change its input in place: not the input of another
                own = Message(TORCH, message.payload.clone(), message.head, message.ret_code, message.replayed)
            self._send(own, each)

    def _send(self, message: Message, target: OutLink | InQueue) -> None:
        if isinstance(target, OutLink):
            # sealed first: the work on a card is waited for, and copied to the host, while others make room
            sealed = self._codec.seal(message, 1, target.on_host, target.wake_early)
            if not target.is_free():
                self._wait(target)
            target.send(sealed, 0)
        else:
            if target.is_full:
                began = time.monotonic_ns()
                self._connections.wait(lambda: not target.is_full, None)
                self.waited_ns += time.monotonic_ns() - began
            target.put(message)
            self._connections.wake()

    def _wait(self, link: OutLink) -> None:
        began = time.monotonic_ns()
        link.wait(None)
        self.waited_ns += time.monotonic_ns() - began


class Stage:
    """An instance of a stage: its object, its inputs, its outputs.

    Args:
        plan: what it is.
    """

    def __init__(self, plan: StagePlan, connections: Connections, codec: Codec) -> None:
        self.plan = plan
        spec = plan.spec
        if spec.workspace:
            os.makedirs(spec.workspace, exist_ok=True)
        _limit_threads(spec.resources.get("num_cpus", 0))
        if spec.env_hook is not None:
            pickle.loads(spec.env_hook)()
        if spec.registry:
            pickle.loads(spec.registry)
        self.device = _device(plan) if spec.kind == "npu" else None
        if self.device is not None:
            self.device.set_current()
        where = "" if self.device is None else str(self.device.torch_device)
        made = pickle.loads(spec.code)(replace(plan.context, device=where))
        self.made: StageObject = made
        self.inputs = [InQueue(connections, codec, plan.depth, plan.overwrites) for _ in range(plan.context.input_num)]
        self.outlets: list[Outlet] = []


def _limit_threads(cores: float) -> None:
    """Set torch's number of threads to the stage's cores.

    Threads of several stages that wait for each other on the same cores make each operation take milliseconds. The
    user's own OMP_NUM_THREADS, or what the stage's hook sets, goes before.
    """
    if cores and "torch" in sys.modules and not os.environ.get("OMP_NUM_THREADS"):
        sys.modules["torch"].set_num_threads(max(1, int(cores)))


def _device(plan: StagePlan) -> Any:
    """The device of a stage: of the kind that toprope chooses, with the stage's own number."""
    from toprope import device

    kind = device.choose(quiet=True).device.kind
    return device.get("cpu" if kind == "cpu" else f"{kind}:{plan.context.device_id}")


class Loop:
    """The loop of one function of a stage, in a thread of its own or shared.

    Attributes:
        leaves: whether its outputs leave the process.
        is_alone: whether its stage has the process for itself; what it has sent is out then.
        on_left: called with each transaction whose outputs have left the process.
    """

    def __init__(
        self, stage: Stage, function: StageFunction, connections: Connections, codec: Codec, status: memoryview,
        events: deque[tuple[str, int, int, int]] | None,
    ) -> None:  # fmt: skip
        plan = stage.plan
        self._stage = stage
        self._function = function
        self._connections = connections
        self._status = status
        self._recorder = Recorder(status) if plan.replies else None  # others pay nothing for it
        self._events = events
        self.node = plan.node
        several = len(plan.spec.functions) > 1
        self.name = f"{plan.spec.name}.{function.name}" if several else plan.spec.name
        self._outlets = [stage.outlets[place] for place in function.outputs]
        self.leaves = any(each.leaves for each in self._outlets) or not self._outlets
        self.is_alone = True
        self.on_left: Callable[[Loop, int], None] | None = None
        self._queues = [stage.inputs[place] for place in function.inputs]
        sources = [
            Source(queue, batcher(plan.batches[place]) if place in plan.batches else None)
            for place, queue in zip(function.inputs, self._queues, strict=True)
        ]
        self._gather: Gather = Align(sources, *plan.align) if plan.align and len(sources) > 1 else Order(sources)
        self._replies = plan.replies
        self._ends = function.name in plan.ends
        stop = self._check_cancelled if plan.replies else None
        is_python = plan.spec.kind != "messages"
        self._call = Python(function, stage.made, stage.device, stop) if is_python else None
        counts_rows = stage.device is not None
        self._collector = (
            Collector(self._gather, plan.spec.batch, plan.spec.wait_ns, counts_rows=counts_rows)
            if plan.spec.batch and is_python
            else None
        )
        self._batch = plan.spec.batch
        self._cancelled: dict[int, None] = {}
        self._looked = 0
        self._counts = [0] * len(function.outputs)
        self._sent = [0] * len(function.outputs)  # of this activation
        self._head = Head()
        self._exceptions: deque[tuple[int, int, int]] = deque()
        self._given_up: deque[int] = deque(maxlen=_REMEMBERED)

    def run_apart(self) -> None:
        """Run in a thread of its own."""
        if self._stage.device is not None:
            self._stage.device.set_current()
        try:
            self.run()
        except Stopped:
            pass
        except BaseException:
            traceback.print_exc()
            raise

    def run(self) -> None:
        """Run until the graph ends, which raises `Stopped`."""
        gather, wait = self._gather, self._connections.wait
        if self._function.stream_input:
            self._stream()
        if self._collector is not None:
            self._run_batches(self._collector)
        while True:
            if not self._is_ready():
                wait(self._is_ready, None, gather.due)
            if self._exceptions:
                self._see_exception()
            else:
                self._handle_group(gather.take())

    def _is_ready(self) -> bool:
        return bool(self._exceptions) or self._gather.is_ready()

    def _handle_group(self, group: Group) -> None:
        """Handle one message of each input that belong together: call the function, or pass on what replaces a call."""
        messages = group.messages
        first = messages[0]
        if len(messages) == 1 and first.kind != FAILURE and not self._replies and not self._given_up:
            self._run(messages)
        else:
            instead = self._messages_without_call(messages)
            if instead is None:
                self._run(messages)
            else:
                self._send_to_all(instead)
        self._finish_inputs(first.head.transaction_id)

    def _messages_without_call(self, messages: list[Message]) -> list[Message] | None:
        """Decide without a call: messages for all outputs, an empty list for nothing at all; None to call the function.

        The function is not called for inputs that have failed, were cancelled or given up, or are the end of a stream.
        """
        head = messages[0].head
        if self._given_up and head.transaction_id in self._given_up:
            return []
        for each in messages:
            if each.kind == FAILURE:
                return [_passed_on(each)]
        if not self._replies:
            return None
        self._read_at_intervals()
        if self._cancelled and head.transaction_id in self._cancelled:
            return [_cancelled(head)]
        ends = sum(each.head.flags & END != 0 for each in messages)
        if not ends:
            return None
        if ends == len(messages):
            return [Message(EMPTY, None, head)]
        text = f"the inputs of {self.name} are streams of different lengths, so their results belong to no request"
        why = _failure(DfException(text), self._stage.plan.spec.name)
        return [Message(FAILURE, why, head, why.code)]

    def _send_to_all(self, instead: list[Message]) -> None:
        for each in instead:
            for outlet in self._outlets:
                outlet.send(each)

    def _finish_inputs(self, transaction: int) -> None:
        """Tell the senders that they need not keep these inputs any longer: the results have left this process.

        If other stages are in the process, it finds out itself when the results have passed them (`on_left`).
        """
        if self.is_alone:
            if self._gather.is_clear:
                for queue in self._queues:
                    for link in queue.links:
                        link.finish()
        elif self.on_left is not None:
            self.on_left(self, transaction)

    def _run(self, messages: list[Message]) -> None:
        """Call the function for one input; its errors become failures on the outputs."""
        head = messages[0].head
        began, waited = self._begin(head)
        try:
            if self._call is not None:
                self._call.run(messages, self._send)
            else:
                self._activate(messages, head, None)
            if self._replies:
                self._reply(head)
        except Stopped:
            raise
        except Cancelled:
            self._send_to_all([_cancelled(head)])
        except BaseException as error:
            self._fail(error, head)
        finally:
            self._end(1, began, waited, head.transaction_id)

    def _begin(self, head: Head) -> tuple[int, int]:
        """Note the start of an input for the driver. Return the time, and how long outputs have waited so far."""
        status = self._status
        status[SINCE] = began = time.monotonic_ns()
        status[TRANSACTION] = head.transaction_id
        self._sent = [0] * len(self._outlets)
        return began, 0 if self._recorder is None else sum(each.waited_ns for each in self._outlets)

    def _end(self, inputs: int, began: int, waited: int, transaction: int) -> None:
        """Note the end of an input, and count its time without waiting for room in outputs."""
        self._status[TRANSACTION] = 0
        if self._recorder is not None:
            waited -= sum(each.waited_ns for each in self._outlets)
            self._recorder.add(inputs, time.monotonic_ns() - began + waited)
        if self._events is not None:
            self._events.append((self.name, began, time.monotonic_ns(), transaction))

    def _reply(self, head: Head) -> None:
        """Send the end of this input's results on each output, or a failure if there are none."""
        for outlet, count in zip(self._outlets, self._sent, strict=True):
            if self._ends:
                ended = Head(*(getattr(head, each) for each in Head.__slots__))
                ended.flags |= END
                outlet.send(Message(EMPTY, None, ended))
            elif not count and not self._function.generates and not head.flags & MORE:
                why = _failure(DfException(f"stage {self.name} made no result of the input"), self.name)
                outlet.send(Message(FAILURE, why, head, why.code))

    # Batches

    def _run_batches(self, collector: Collector) -> None:
        wait = self._connections.wait

        def is_ready() -> bool:
            return collector.is_ready(time.monotonic())

        while True:
            wait(is_ready, None, collector.due)
            self._turn_of_batch(collector.take())

    def _turn_of_batch(self, groups: list[Group]) -> None:
        assert self._call is not None
        instead = [self._messages_without_call(each.messages) for each in groups]
        called = [each.messages for each, known in zip(groups, instead, strict=True) if known is None]
        head = (called or [groups[0].messages])[0][0].head
        began, waited = self._begin(head)
        try:
            made = iter(self._call.batch(called, self._batch))
            for group, known in zip(groups, instead, strict=True):
                if known is None:
                    self._send_made(group.messages[0].head, next(made))
                else:
                    self._send_to_all(known)
        finally:
            if called:
                self._end(len(called), began, waited, head.transaction_id)
            self._status[TRANSACTION] = 0
        for group in groups:  # the collector is empty
            self._finish_inputs(group.messages[0].head.transaction_id)

    def _send_made(self, head: Head, made: Made) -> None:
        self._sent = [0] * len(self._outlets)
        try:
            if isinstance(made, BaseException):
                raise made
            for index, kind, payload in made:
                self._send(index, Message(kind, payload, head))
            if self._replies:
                self._reply(head)
        except Stopped:
            raise
        except BaseException as error:
            self._fail(error, head)

    def _fail(self, error: BaseException, head: Head) -> None:
        found = _failure(error, self._stage.plan.spec.name)
        text = found.traceback.rstrip()
        os.write(2, f"toprope: input {head.transaction_id} failed in stage {self.name}:\n{text}\n".encode())
        # An output that has sent its data of this input gets no failure in addition: the next stage would take it for
        # the data of another input, and pair all later messages wrongly.
        least = min(self._sent, default=0)
        for outlet, count in zip(self._outlets, self._sent, strict=True):
            if count == least and (least == 0 or self._call is not None):
                outlet.send(Message(FAILURE, found, head, found.code))

    def _send(self, index: int, message: Message) -> None:
        # Waiting for room is not work on the input: the driver must not count it against the deadline.
        status = self._status
        transaction, status[TRANSACTION] = status[TRANSACTION], 0
        try:
            self._outlets[index].send(message)
            self._sent[index] += 1
        finally:
            status[SINCE] = time.monotonic_ns()
            status[TRANSACTION] = transaction

    # Stream input

    def _stream(self) -> None:
        """Call a function with stream input whenever there are messages, which it takes itself."""
        queues = [InputQueue(self._connections, each, self._pass_on) for each in self._queues]
        assert self._call is not None
        while True:
            self._connections.wait(lambda: any(len(each) for each in self._queues), None)
            self._head = self._queues[0].head()[0] if len(self._queues[0]) else Head()
            try:
                self._call.stream(queues, self._send_counted, lambda: self._head)
            except Stopped:
                raise
            except BaseException as error:
                self._fail(error, self._head)
            for queue in self._queues:
                for link in queue.links:
                    link.finish()

    def _pass_on(self, message: Message) -> None:
        for outlet in self._outlets:
            outlet.send(_passed_on(message))

    def _send_counted(self, index: int, message: Message) -> None:
        head = message.head
        self._counts[index] += 1
        counted = Head(self._counts[index], head.start_time, head.end_time, head.flags, head.user_data, head.data_size)
        self._outlets[index].send(message.with_head(counted))

    # Cancellation

    def cancel(self, transaction: int) -> None:
        """Cancel a transaction whose receiver has given up."""
        self._cancelled[transaction] = None
        if len(self._cancelled) > _REMEMBERED:
            del self._cancelled[next(iter(self._cancelled))]

    def _check_cancelled(self, transaction: int) -> None:
        """Read messages, and end the call if its transaction was cancelled.

        Raises:
            Cancelled: it was.
        """
        self._read_at_intervals()
        if self._cancelled and transaction in self._cancelled:
            raise Cancelled

    def _read_at_intervals(self) -> None:
        """Read messages at intervals: a stage that always has inputs never waits for any."""
        now = time.monotonic_ns()
        if now - self._looked > _LOOK_NS:
            self._looked = now
            self._connections.look()

    # Functions of kind "messages", and their exceptions

    def _activate(self, messages: list[Message], head: Head, exception: tuple[int, int] | None) -> None:
        def raise_(code: int, context: int) -> None:
            self._raise_exception(head, code, context)

        activation = Activation(messages, head, self._send, raise_, exception)
        code = self._stage.made.functions[self._function.name](activation)
        if code and head.transaction_id not in self._given_up:
            raise DfException(f"{self.name} returned {code}", FLOW_FUNC_FAILED)

    def _raise_exception(self, head: Head, code: int, context: int) -> None:
        """Give an input up for the function, and report that to all stages by way of the driver."""
        if not self._stage.plan.catches:
            raise DfException(f"{self.name} raised the exception {code}, and the graph does not catch them", code)
        self._given_up.append(head.transaction_id)
        driver = self._connections.peer(DRIVER)
        if driver is not None:
            fields = (head.transaction_id, head.start_time, head.end_time, head.flags, head.user_data, head.data_size)
            self._connections.send(driver, Kind.EXCEPTION, USER_RAISE_EXCEPTION, (code, context, self.node, *fields))

    def caught(self, transaction: int, code: int, context: int, *, is_own: bool) -> None:
        """Note that a stage has given a transaction up."""
        self._given_up.append(transaction)
        self._gather.forget(transaction)
        if not is_own and self._call is None:
            self._exceptions.append((transaction, code, context))
            self._connections.wake()

    def _see_exception(self) -> None:
        transaction, code, context = self._exceptions.popleft()
        try:
            self._activate([], Head(transaction), (code, context))
        except Stopped:
            raise
        except BaseException:
            traceback.print_exc()


def _failure(error: BaseException, stage: str, code: int = FLOW_FUNC_FAILED) -> Failure:
    """Make the failure message for data that a function did not produce."""
    frames = error.__traceback__
    while frames is not None and "/toprope/flow/" in frames.tb_frame.f_code.co_filename:
        frames = frames.tb_next  # our own frames are left out
    text = "".join(traceback.format_exception(type(error), error, frames))
    return Failure(as_exception(error.with_traceback(None)), text, stage, code)


def _cancelled(head: Head) -> Message:
    """Return the message that replaces the results of a cancelled input, for the next stages."""
    why = Failure(Cancelled())
    return Message(FAILURE, why, head, why.code)


def _passed_on(message: Message) -> Message:
    """Copy a failed message for the next stages."""
    return Message(FAILURE, message.payload, message.head, message.ret_code, message.replayed)

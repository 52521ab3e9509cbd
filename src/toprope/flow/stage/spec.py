"""Specification of stages, and messages between them: types that building and running a graph share; pure.

A process point (`flow.points`) describes its stage with `StageSpec`. In the stage's process (`flow.worker`) the
`code` of it is unpickled and called with a `StageContext`; what it returns, a `StageObject`, has the functions to run
and knows how Python values become messages. So the running half needs to know nothing of decorators, tensors and
registries. Fixed by CANN's dataflow API: the numbers of message types and of EOS and SEG, `CountBatch` and `TimeBatch`.
All else is toprope's own; `edge.codec` sends the fields of `Head` in their order. Tests: tests/flow/test_flow_edge.py,
tests/flow/test_serve_parts.py, tests/flow/test_flow_semantics.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from toprope.flow.exceptions import FLOW_FUNC_FAILED, DfException

__all__ = [
    "EMPTY",
    "END",
    "EOS",
    "FAILURE",
    "MORE",
    "OWN_FLAGS",
    "PICKLED",
    "RAW",
    "SEG",
    "TENSOR",
    "TORCH",
    "CountBatch",
    "Deploy",
    "Failure",
    "Head",
    "Message",
    "RunOptions",
    "StageContext",
    "StageFunction",
    "StageObject",
    "StageSpec",
    "TimeBatch",
]

# Kinds of messages: the reference's message types, and two of ours. Types of the user's are 1024 and more.
TENSOR = 0
"""The payload is a numpy array (of `dataflow.Tensor`)."""
RAW = 1
"""The payload is bytes."""
TORCH = 1023
"""The payload is a torch.Tensor."""
PICKLED = 65535
"""The payload is any object; it is pickled where it leaves the process."""
EMPTY = -1
"""There is no payload: None."""
FAILURE = -2
"""The payload is a `Failure` in place of the data."""

EOS, SEG = 1, 2
"""Flags of a message: the end of the sequence, the end of a segment."""

MORE, END = 1 << 30, 1 << 29
"""Flags of a stream of results, see `RunOptions.replies`: a result after which more may follow, and the message without
data that ends the stream."""
OWN_FLAGS = MORE | END
"""Flags that no user sees."""


@dataclass(slots=True)
class CountBatch:
    """Stack a fixed number of messages of an input into one, on a new first axis. Attributes may be set afterwards.

    Attributes:
        batch_size: messages; more than 0.
        slide_stride: messages that are dropped after each batch; 0 for all of them.
        timeout: milliseconds after which a batch goes out as it is; 0 for never.
        padding: whether such a batch is filled up with zeros.

    Raises:
        DfException: one is of another type.
    """

    batch_size: int = 0
    slide_stride: int = 0
    timeout: int = 0
    padding: bool = False

    def __post_init__(self) -> None:
        """Check the types."""
        _check_types(self)


@dataclass(slots=True)
class TimeBatch:
    """Gather the messages of a window of time into one. Attributes may be set afterwards.

    Attributes:
        time_window: milliseconds of the messages' own times; -1 for a segment, which SEG or EOS ends.
        batch_dim: the axis along which they are joined; -1 for a new first one.
        drop_remainder: whether a batch that ends early is dropped.

    Raises:
        DfException: one is of another type.
    """

    time_window: int = 0
    batch_dim: int = -1
    drop_remainder: bool = False

    def __post_init__(self) -> None:
        """Check the types."""
        _check_types(self)


def _check_types(batch: CountBatch | TimeBatch) -> None:
    """Refuse attributes of other types than their defaults.

    Raises:
        DfException: which.
    """
    for each in fields(batch):
        value = getattr(batch, each.name)
        if type(value) is not type(each.default):
            wanted = type(each.default).__name__
            raise DfException(f"{each.name} of a {type(batch).__name__} must be {wanted}, got {value!r}")


@dataclass(slots=True)
class Head:
    """Head of a message, see `FlowInfo`.

    Attributes:
        transaction_id: which input of the graph the message belongs to.
        start_time, end_time: milliseconds.
        flags: of EOS, SEG.
        user_data: up to 64 bytes of the user's; empty for none.
        data_size: end of their written part.
        data_label: which part of a transaction that was split, see `BalanceConfig`; 0 for none.
    """

    transaction_id: int = 0
    start_time: int = 0
    end_time: int = 0
    flags: int = 0
    user_data: bytes = b""
    data_size: int = 0
    data_label: int = 0


@dataclass(slots=True)
class Failure:
    """A failure that travels in place of data.

    Attributes:
        error: the user's exception, or ours.
        traceback: its traceback as text, of the stage's process.
        stage: name of the stage; empty where it is none.
        code: the code that fetching returns.
    """

    error: BaseException
    traceback: str = ""
    stage: str = ""
    code: int = FLOW_FUNC_FAILED


@dataclass(slots=True)
class Message:
    """One message on an edge: kind, payload and head.

    Attributes:
        kind: TENSOR, RAW, TORCH, PICKLED, EMPTY, FAILURE, or a type of the user's (1024 and more; bytes).
        payload: see the kinds.
        head: its head.
        ret_code: 0, or what went wrong with it.
        replayed: whether it stands for one that a killed stage may have sent already.
        route_label: chooses the instance that it goes to, together with its transaction; 0 for none. It does not
            travel.
    """

    kind: int
    payload: Any = None
    head: Head = field(default_factory=Head)
    ret_code: int = 0
    replayed: bool = False
    route_label: int = 0

    @property
    def failed(self) -> bool:
        """True if a failure is in place of the data."""
        return self.kind == FAILURE

    def with_head(self, head: Head) -> Message:
        """The same data under another head."""
        return replace(self, head=head)


@dataclass(frozen=True)
class StageFunction:
    """One function of a stage: its inputs, its outputs and how it is called.

    Attributes:
        name: its key in `StageObject.functions`.
        inputs, outputs: the places of the node's inputs and outputs that are its own, in the order of its parameters
            and results. Outputs may belong to several functions.
        stream_input: whether it gets queues, from which it takes any number of messages.
        choice: for each output a function that decides whether a value is sent; None for always. Empty for all always.
        generates: whether it is a generator function, which makes several results of one input.
    """

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    stream_input: bool = False
    choice: tuple[Callable[[Any], Any] | None, ...] = ()
    generates: bool = False


@dataclass(frozen=True)
class StageSpec:
    """Specification of a stage, which is sent to its process.

    Attributes:
        name: of the node; in errors, metrics and traces.
        kind: how its functions are called. "python": with the values, they return a value, a tuple of as many as
            there are outputs, or a generator of such. "npu": the same with tensors on the stage's device, in and out.
            "messages": with one `Activation` (toprope.flow.worker.calls), which has the messages and sends others; the
            result is a code.
        code: pickle of a function that is given the `StageContext` and returns a `StageObject`.
        functions: its functions; empty for one, "run", of all inputs and outputs of its node.
        resources: "num_cpus", "memory" (MB), as far as the user gave them. "num_npus" is not charged.
        env_hook: pickle of a function without arguments that runs before `code` is unpickled.
        visible_device: whether the process is shown only its own card.
        workspace: folder of its own, for what the stage writes; empty for none.
        registry: pickle of the types that messages need; it is unpickled before `code`.
        instances: processes that share the inputs, where the deploy file does not say.
        batch: most requests, or rows of tensors, that one call is given; 0 for no batching across inputs.
        wait_ns: nanoseconds that the first of a batch waits for others.
    """

    name: str
    kind: str
    code: bytes
    functions: tuple[StageFunction, ...]
    resources: Mapping[str, float] = field(default_factory=dict)
    env_hook: bytes | None = None
    visible_device: bool = False
    workspace: str = ""
    registry: bytes = b""
    instances: int = 1
    batch: int = 0
    wait_ns: int = 0


@dataclass(frozen=True)
class StageContext:
    """Location and size of a stage's instance.

    Attributes:
        name: of the node.
        input_num, output_num: of the node.
        device_id: number of the card (`get_running_device_id()`); 0 where only its own is shown.
        instance_id, instance_num: which of how many instances of the stage this is.
        workspace: see `StageSpec`.
        device: the device of an "npu" stage ("npu:0", "cuda:1", "cpu"); "" else.
        balance: "scatter" or "gather" where the node may use `BalanceConfig`.
    """

    name: str
    input_num: int
    output_num: int
    device_id: int = 0
    instance_id: int = 0
    instance_num: int = 1
    workspace: str = ""
    device: str = ""
    balance: str = ""


def _wrap(value: Any) -> tuple[int, Any]:
    return (EMPTY, None) if value is None else (PICKLED, value)


def _unwrap(kind: int, payload: Any) -> Any:
    return payload


@dataclass
class StageObject:
    """The object that runs in a stage.

    Attributes:
        functions: by `StageFunction.name`.
        wrap: a value that a function returned as kind and payload.
        unwrap: kind and payload as the value that a function is given.
        queue: makes the argument of a function with stream input from an `InputQueue` (toprope.flow.worker.calls).
        close: called when the stage ends.
    """

    functions: Mapping[str, Callable[..., Any]]
    wrap: Callable[[Any], tuple[int, Any]] = _wrap
    unwrap: Callable[[int, Any], Any] = _unwrap
    queue: Callable[[Any], Any] | None = None
    close: Callable[[], None] | None = None


@dataclass(frozen=True)
class Deploy:
    """Deployment of a stage: one device index for each instance.

    Attributes:
        devices: for example (0, 0) for two instances on card 0.
    """

    devices: tuple[int, ...] = (0,)


START_TIMEOUT_MS = 1_800_000
"""Half an hour: a large model is read from slow disks in it, and its progress is in the log meanwhile."""


@dataclass(frozen=True)
class RunOptions:
    """Options of the run of a graph, from its settings.

    Attributes:
        deploy: by name of the node in the deploy file; a node that is not there runs once on `device_index`.
        device_index: the card of such nodes.
        n_mapping: whether some node does not make one output per input; custom transaction ids are used then.
        align: most groups that wait for their missing messages, 0 for no alignment.
        align_timeout_ms: how long a group waits; -1 for ever.
        align_drop: whether a group that stays incomplete is dropped; else it is delivered as it is.
        exception_catch: whether `raise_exception` of a function is reported to all stages and to `fetch`.
        colocate: whether neighbouring stages run as threads of one process, and pass messages by reference. Should the
            process die, inputs in flight in any of them fail.
        restarts: how often a stage whose process has died is started again.
        deadline_ms: how long a stage may work on one input; 0 for no limit. One that takes longer is ended and started
            again, and the input fails.
        start_timeout_ms: how long all stages together may take to start, and one that is started again.
        trace: whether the stages record their work, for `Runner.trace`.
        replies: whether each input has an end that the driver sees, as a service needs it: a generator's results are
            followed by a message with the flag END, and a stage that sends nothing sends a failure instead.
    """

    deploy: Mapping[str, Deploy] = field(default_factory=dict)
    device_index: int = 0
    n_mapping: bool = False
    align: int = 0
    align_timeout_ms: int = -1
    align_drop: bool = False
    exception_catch: bool = False
    colocate: bool = False
    restarts: int = 1
    deadline_ms: int = 0
    start_timeout_ms: int = START_TIMEOUT_MS
    trace: bool = False
    replies: bool = False


Batching = CountBatch | TimeBatch
"""How the messages of an input are joined, see `toprope.flow.worker.batch`."""

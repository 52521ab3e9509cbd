"""Models and graphs that a function of a stage runs by `run_flow_model`.

`process_points` makes them for the stage; there `udf.run_context` runs them. Unlike stages, they run when they are
called, inside of the stage. They travel as pickles, so `portable` leaves out all that the stage does not need. The
codes of a run are those of CANN's dataflow API. Tests: tests/flow/test_flow_func.py, tests/flow/test_flow_onnx.py.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Any

from toprope.flow.exceptions import FAILED, FLOW_FUNC_FAILED, MODEL_EXECUTE_TIMEOUT, QUEUE_FULL, SUCCESS, DfException
from toprope.flow.graph.nodes import FlowNode, FlowOutput, Plan
from toprope.flow.session import logger
from toprope.flow.stage.spec import TENSOR, TORCH, Head, Message, RunOptions, StageContext, StageSpec
from toprope.flow.tensor import Tensor

__all__ = ["GraphClosure", "ModelClosure", "portable"]

_TIMED_OUT = 564001


@dataclass(frozen=True)
class _Ready:
    """A process point with a known specification."""

    spec: StageSpec

    def stage_spec(self) -> StageSpec:
        """The stage's specification."""
        return self.spec


def portable(plan: Plan) -> Plan:
    """A plan that can be sent to a stage."""
    copies = []
    for node in plan.nodes:
        copy = FlowNode.__new__(FlowNode)
        vars(copy).update(
            {name: value for name, value in vars(node).items() if name not in ("inputs", "_wired", "_methods")}
        )
        copy.inputs = ()
        copy.point = _Ready(node.point.stage_spec())
        copies.append(copy)
    places = {id(node): place for place, node in enumerate(plan.nodes)}
    fetched = tuple(FlowOutput(copies[places[id(each.node)]], each.index) for each in plan.fetched)
    return replace(plan, nodes=tuple(copies), fetched=fetched)


@dataclass(frozen=True)
class ModelClosure:
    """A model file that a function of a stage runs.

    Attributes:
        path: the file.
        is_onnx: whether onnxruntime runs it.
    """

    path: str
    is_onnx: bool

    def open(self, context: StageContext) -> _Model:
        """Load it."""
        return _Model(self, context)


class _Model:
    def __init__(self, closure: ModelClosure, context: StageContext) -> None:
        from toprope.flow.points.model_files import load_onnx, load_program

        self._where = ""
        if closure.is_onnx:
            self._run = load_onnx(closure.path)
        else:
            from toprope import device

            kind = device.choose(quiet=True).device.kind
            self._where = "cpu" if kind == "cpu" else f"{kind}:{context.device_id}"
            self._run = load_program(closure.path, self._where)

    def run(self, messages: list[Message], timeout: int) -> tuple[int, list[Message]]:
        """Run it once: a code, and its outputs as tensors."""
        try:
            result = self._run(*map(self._value, messages))
        except Exception as error:
            logger.error("a model that a function runs has failed: %s", error, exc_info=True)
            return FLOW_FUNC_FAILED, []
        head = messages[0].head if messages else Head()
        results = result if isinstance(result, tuple) else (result,)
        return SUCCESS, [Message(TENSOR, _array(each), replace(head)) for each in results]

    def _value(self, message: Message) -> Any:
        if not self._where:
            return Tensor.over(message.payload) if message.kind == TENSOR else message.payload
        import torch

        if message.kind not in (TENSOR, TORCH):
            raise DfException("a model takes tensors only")
        return torch.as_tensor(message.payload.copy() if message.kind == TENSOR else message.payload).to(self._where)

    def close(self) -> None:
        """Release its resources."""


def _array(value: Any) -> Any:
    return value.numpy() if isinstance(value, Tensor) else value.detach().cpu().contiguous().numpy()


@dataclass(frozen=True)
class GraphClosure:
    """A graph. Its stages run in processes of their own, as those of any graph.

    Attributes:
        plan: its plan.
        options: its run options.
    """

    plan: Plan
    options: RunOptions

    def open(self, context: StageContext) -> _Graph:
        """Prepare it; it starts at its first run."""
        return _Graph(self.plan, replace(self.options, device_index=context.device_id))


class _Graph:
    def __init__(self, plan: Plan, options: RunOptions) -> None:
        self._plan = plan
        self._options = options
        self._lock = threading.Lock()
        self._runner: Any = None

    def run(self, messages: list[Message], timeout: int) -> tuple[int, list[Message]]:
        """Run it once: a code, and its outputs."""
        with self._lock:
            try:
                runner = self._started()
            except DfException as error:
                logger.error("a graph that a function runs cannot start: %s", error)
                return FLOW_FUNC_FAILED, []
            heads = [each.head for each in messages]
            values = {place: replace(each, head=replace(each.head)) for place, each in enumerate(messages)}
            code = runner.feed(values, timeout)
            if code:
                return _TIMED_OUT if code == QUEUE_FULL else FLOW_FUNC_FAILED, []
            ours = values[0].head.transaction_id if values else 0
            found = runner.fetch(None, timeout)
            while found.messages and found.head.transaction_id < ours:  # of a call that had timed out
                found = runner.fetch(None, timeout)
            if found.code == MODEL_EXECUTE_TIMEOUT:
                return _TIMED_OUT, []
            if found.code:
                return FLOW_FUNC_FAILED if found.code == FAILED else found.code, []
            ordered = [found.messages[place] for place in self._plan.order]
            return SUCCESS, [each.with_head(replace(heads[0])) if heads else each for each in ordered]

    def _started(self) -> Any:
        if self._runner is None:
            from toprope.flow.executor.runner import Runner

            runner = Runner(self._plan, self._options)
            runner.start()
            self._runner = runner
        return self._runner

    def close(self) -> None:
        """End it."""
        if self._runner is not None:
            self._runner.close()

"""`FlowGraph`: the user's class of a graph, which is fed and fetched from.

Public API with the names, codes and quirks of CANN's dataflow API, and toprope's own calls (`submit`, `stream`,
`results`, ...); the HTTP service and `toprope serve` call it, too. docs/flow.md lists where it differs. What runs is
`executor.runner`; conversion of values is `flow.convert`. Tests: tests/flow/test_flow_semantics.py,
tests/flow/test_flow_graph.py, tests/flow/test_serve_graph.py.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toprope.flow import convert, session
from toprope.flow.exceptions import (
    FAILED,
    INNER_ERROR,
    MODEL_EXECUTE_TIMEOUT,
    PARAM_INVALID,
    QUEUE_EMPTY,
    SUCCESS,
    DfException,
    with_notes,
)
from toprope.flow.flow_info import FlowFlag, FlowInfo
from toprope.flow.graph.nodes import FlowData, FlowOutput, plan, unique_name
from toprope.flow.graph.settings import GraphSettings, is_compile_only
from toprope.flow.graph.streams import generators
from toprope.flow.result import FlowResult
from toprope.flow.session import logger
from toprope.flow.stage.spec import EMPTY, START_TIMEOUT_MS, Head, Message, RunOptions
from toprope.flow.tensor import Tensor

if TYPE_CHECKING:
    from toprope.flow.executor.runner import Fetched, Runner
    from toprope.flow.futures import Futures, ResultStream
    from toprope.flow.observability.metrics import EdgeMetrics, StageMetrics

__all__ = ["FlowGraph"]

_log = logging.getLogger("toprope")

_PATIENCE = 60.0
"""Seconds of waiting for the first input after which the log says so."""


class FlowGraph(GraphSettings):
    """A graph of stages between inputs and outputs, fed and fetched from in this program.

    Args:
        outputs: the fetched outputs, in this order; an output may occur several times.
        graph_options: options by name, in addition to those of `init`.
        name: its name.
        graphpp_builder_async: not needed here: nothing is compiled.
        colocate: whether neighbouring stages run as threads of one process. Not in the reference, as what follows.
        restarts: how often a stage whose process has died is started again.
        deadline_ms: how long a stage may work on one input; it fails then, and the stage is started again. 0: no limit.
        start_timeout_ms: how long all stages together may take to start, and one that is started again.
        trace: whether the work of the stages is recorded, for `trace`.

    Raises:
        DfException: outputs are no list of FlowOutput, `init` was not called (145001), or the nodes cannot be a graph.
    """

    def __init__(
        self, outputs: list[FlowOutput], graph_options: dict[str, str] | None = None, name: str | None = None,
        graphpp_builder_async: bool = False, *, colocate: bool = False, restarts: int = 1, deadline_ms: int = 0,
        start_timeout_ms: int = START_TIMEOUT_MS, trace: bool = False,
    ) -> None:  # fmt: skip
        if not isinstance(outputs, list | tuple) or not all(isinstance(each, FlowOutput) for each in outputs):
            raise DfException(f"outputs must be a list of FlowOutput, got {outputs!r}")
        session.check(graph_options or {})
        options = {**session.options(), **(graph_options or {})}
        run = RunOptions(colocate=colocate, restarts=restarts, deadline_ms=deadline_ms, trace=trace)
        super().__init__(plan(outputs), options, run, session.is_strict(options))
        self.set_start_timeout(start_timeout_ms)
        self.name = unique_name(name, "FlowGraph")
        self._lock = threading.Lock()
        self._start_ended = threading.Event()  # started, failed or closed
        self._runner: Runner | None = None
        self._futures: Futures | None = None
        self._closed = False
        self._last_error: BaseException | None = None
        session.note(self)

    @property
    def error(self) -> BaseException | None:
        """The error of the last call that returned 4294967295; None if no call did."""
        broken = self._runner.error if self._runner is not None else None
        return convert.failure_error(broken, 0) if broken is not None else self._last_error

    def _started(self) -> Runner | None:
        """Return the running graph; None if it cannot run, which is logged."""
        with self._lock:
            if self._runner is None and not self._closed and self._last_error is None:
                from toprope.flow.executor.runner import Runner

                try:
                    runner = Runner(self._plan, self.run_options())
                    runner.start()
                except Exception as error:
                    self._last_error = error
                    self._start_ended.set()
                    logger.error("%s cannot run: %s", self.name, with_notes(error))
                    return None
                self._runner = runner
                self._start_ended.set()
                weakref.finalize(self, runner.close)
        return self._runner if not self._closed else None

    # Feeding

    def feed_data(
        self, feed_dict: Mapping[FlowData, Any], flow_info: FlowInfo | None = None, timeout: int = -1,
        partial_inputs: bool = False,
    ) -> int:  # fmt: skip
        """Feed tensors.

        Args:
            feed_dict: values that numpy can convert, by input. Empty if flow_info ends the sequence (EOS).
            flow_info: the flow info of the input.
            timeout: milliseconds to wait for room; -1 for ever.
            partial_inputs: whether inputs may be left out.

        Returns:
            0; 145000 and its kind for wrong arguments, 207014 where there is no room, 4294967295 where the graph
            cannot run; the log says why.
        """

        def messages() -> dict[int, Message]:
            if flow_info is not None and not isinstance(flow_info, FlowInfo):
                raise DfException(f"flow_info must be a FlowInfo, got {type(flow_info).__name__}")
            head = convert.head_of(flow_info)
            if isinstance(feed_dict, Mapping) and not feed_dict and head.flags & FlowFlag.DATA_FLOW_FLAG_EOS:
                return {place: Message(EMPTY, None, replace(head)) for place in range(len(self._plan.inputs))}
            values = convert.values_of(self._plan, feed_dict, partial_inputs)
            return {
                place: convert.tensor_message(data, value, replace(head)) for place, (data, value) in values.items()
            }

        return self._feed(messages, timeout, partial_inputs)

    def feed(self, feed_dict: Mapping[FlowData, Any], timeout: int = -1, partial_inputs: bool = False) -> int:
        """Feed any values: Tensor, None, torch.Tensor on the CPU, registered classes, what pickle takes.

        Args and returns as of `feed_data`.

        Raises:
            TypeError: a torch.Tensor that is not on the CPU.
            Whatever a serializer raises.
        """
        return self._feed(lambda: self._any_messages(feed_dict, partial_inputs), timeout, partial_inputs)

    def _any_messages(self, feed_dict: Any, partial: bool) -> dict[int, Message]:
        values = convert.values_of(self._plan, feed_dict, partial)
        return {place: convert.any_message(data, value, Head()) for place, (data, value) in values.items()}

    def _feed(self, make: Callable[[], dict[int, Message]], timeout: Any, partial: Any) -> int:
        try:
            if type(timeout) is not int or not isinstance(partial, bool):
                raise DfException(f"timeout must be an int and partial_inputs a bool, got {timeout!r}, {partial!r}")
            messages = make()
        except DfException as error:
            logger.error("feeding %s: %s", self.name, error.message)
            return error.error_code
        self._fed = True
        if is_compile_only(self._options):
            self._start_ended.set()
            return SUCCESS
        runner = self._started()
        return FAILED if runner is None else runner.feed(messages, timeout, partial=partial)

    # Fetching

    def fetch_data(self, indexes: list[int] | None = None, timeout: int = -1) -> tuple[list[Tensor], FlowInfo, int]:
        """The next result, as tensors; an empty one (such as the end of the sequence) adds none.

        Args:
            indexes: which outputs; None for all.
            timeout: milliseconds to wait, also for the first input; -1 for ever, 0 not at all.

        Returns:
            The tensors, what travels with them, and a code: 0; 545601 where the time is over, 207013 where it was 0,
            564000 and its kind where the input has failed, 345103 where a function gave it up, 345104 where something
            of it is missing, 4294967295 where the graph cannot run.
        """
        found = self._fetch(indexes, timeout, aligned=True)
        if isinstance(found, int):
            return [], FlowInfo(), found
        messages, fetched = found
        try:
            tensors = [convert.tensor_of(each) for each in messages] if _has_data(fetched) else []
        except DfException as error:
            logger.error("fetching from %s: %s", self.name, error.message)
            return [], convert.info_of(fetched.head), error.error_code
        return [each for each in tensors if each is not None], convert.info_of(fetched.head), fetched.code

    def fetch(self, indexes: list[int] | None = None, timeout: int = -1) -> tuple[list[Any], int]:
        """The next result: values as the last stages made them, and a code. As `fetch_data`."""
        found = self._fetch(indexes, timeout, aligned=not self._strict)
        if isinstance(found, int):
            return [], found
        result = self._result(*found)
        if self._strict and result.code and result.error is not None:
            return [], PARAM_INVALID
        return result.values, result.code

    def fetch_result(self, indexes: list[int] | None = None, timeout: int = -1) -> FlowResult:
        """The next result, with the user's own exception where the input has failed. Not in the reference.

        Args as of `fetch_data`.
        """
        found = self._fetch(indexes, timeout, aligned=True)
        if isinstance(found, int):
            return FlowResult([], FlowInfo(), found, self.error if found == FAILED else None)
        return self._result(*found)

    def _result(self, messages: list[Message], fetched: Fetched) -> FlowResult:
        info = convert.info_of(fetched.head)
        if fetched.errors:
            error = convert.failure_error(fetched.errors[0], fetched.head.transaction_id)
            return FlowResult([], info, fetched.code, error)
        if not _has_data(fetched):
            return FlowResult([], info, fetched.code)
        try:
            return FlowResult([convert.value_of(each) for each in messages], info, fetched.code)
        except DfException as error:
            logger.error("fetching from %s: %s", self.name, error.message)
            return FlowResult([], info, error.error_code, error)
        except Exception as error:  # of a deserializer
            logger.error("fetching from %s: %r", self.name, error)
            return FlowResult([], info, INNER_ERROR, error)

    def _fetch(self, indexes: Any, timeout: Any, *, aligned: bool) -> int | tuple[list[Message], Fetched]:
        """Fetch results in the user's order. Return them, or a code."""
        try:
            places = self._places(indexes)
            if type(timeout) is not int:
                raise DfException(f"timeout must be an int, got {timeout!r}")
            if self._futures is not None:
                raise DfException("results of a graph that submit() was called of go to their futures")
        except DfException as error:
            logger.error("fetching from %s: %s", self.name, error.message)
            return error.error_code
        if timeout < -1:
            return FAILED
        until = None if timeout < 0 else time.monotonic() + timeout / 1000
        if not self._start_ended.is_set() and not self._wait_for_start(until):
            return MODEL_EXECUTE_TIMEOUT if timeout else QUEUE_EMPTY
        runner = self._runner
        if runner is None or self._closed:
            return FAILED
        unique = sorted(set(places))
        left = timeout if until is None or not timeout else max(1, round((until - time.monotonic()) * 1000))
        fetched = runner.fetch(unique, left, aligned=aligned)
        if not fetched.messages:
            return [], fetched
        return [fetched.messages[unique.index(place)] for place in places], fetched

    def _wait_for_start(self, until: float | None) -> bool:
        """Wait for the first input, which starts the graph. Return True if it has started, or never will.

        Under strict nothing is waited for before the first input, as in the reference.
        """
        if self._strict and not self._fed:
            return True
        began = time.monotonic()
        left = None if until is None else until - began
        if self._start_ended.wait(_PATIENCE if left is None else min(_PATIENCE, left)):
            return True
        if time.monotonic() - began >= _PATIENCE and not self._fed:
            _log.warning(
                "fetch from %s has waited for %.0f s, and nothing was fed. do: feed before, or in another thread",
                self.name, _PATIENCE,
            )  # fmt: skip
        return self._start_ended.wait(None if until is None else until - time.monotonic())

    def _places(self, indexes: Any) -> list[int]:
        order = list(self._plan.order)
        if indexes is None:
            return order
        if not isinstance(indexes, list | tuple) or not all(type(each) is int for each in indexes):
            raise DfException(f"indexes must be a list of int, got {indexes!r}")
        if not indexes:
            return sorted(order) if self._strict else order
        least = -len(order) if self._strict else 0
        if not all(least <= each < len(order) for each in indexes):
            raise DfException(f"indexes must be 0 to {len(order) - 1}, got {indexes!r}")
        return [order[each] for each in indexes]

    # Beyond the reference

    def submit(
        self, feed_dict: Mapping[FlowData, Any], *, flow_info: FlowInfo | None = None, deadline: float | None = None,
        wait: bool = True,
    ) -> Future[list[Any]]:  # fmt: skip
        """Feed values. Return a future of the result: the list of values, or the user's own exception.

        From the first call on, results go to the futures alone, and `fetch` returns 145000. For asyncio:
        `await asyncio.wrap_future(graph.submit(...))`. A future that is cancelled or late leaves the others as they
        are; the result of its input is dropped.

        Args:
            feed_dict: values by input, all of them.
            flow_info: the flow info of the input.
            deadline: seconds from now after which the future fails with TimeoutError; None for none. Stages that have
                not begun with the input then leave it out, as they do for a future that is cancelled.
            wait: whether to wait for room where the graph has none.

        Raises:
            QueueFull: a DfException (207014): there is no room, and wait is False.
            DfException: wrong arguments, the graph cannot run, or it has stages with other numbers of outputs than
                inputs, so that no result belongs to one input.
        """
        names = generators(self._plan)
        if names:
            raise DfException(f"{names[0]} is a generator, with several results of one input: use stream()")
        messages = self._messages_of(feed_dict, flow_info)
        return self._receivers().submit(messages, deadline, wait=wait)

    def stream(
        self, feed_dict: Mapping[FlowData, Any], *, flow_info: FlowInfo | None = None, deadline: float | None = None,
        wait: bool = True,
    ) -> ResultStream:  # fmt: skip
        """Feed values, and iterate over the results that generator stages make of them, each a list of values.

        For a graph that was fed by nothing but `stream` and `submit`. Its end, or the user's own exception, ends the
        iteration. Args and errors as of `submit`.
        """
        messages = self._messages_of(feed_dict, flow_info)
        futures = self._receivers()
        if not self._run.replies:
            raise DfException("stream() needs a graph that was not fed by feed(): make another one")
        return futures.stream(messages, deadline, wait=wait)

    def start(self) -> None:
        """Start the stages now, and not when it is first fed; results go to `submit` and `stream` then.

        Raises:
            DfException: the graph cannot run, or it has stages whose results belong to no single input.
        """
        self._receivers()

    def _messages_of(self, feed_dict: Mapping[FlowData, Any], flow_info: FlowInfo | None) -> dict[int, Message]:
        head = convert.head_of(flow_info)
        values = convert.values_of(self._plan, feed_dict, False)
        return {place: convert.any_message(data, value, replace(head)) for place, (data, value) in values.items()}

    def _receivers(self) -> Futures:
        """The futures and streams of the running graph; it is started first."""
        if self._futures is not None and not self._closed:
            return self._futures
        from toprope.flow.futures import Futures

        if self.run_options().n_mapping:
            raise DfException("submit needs a graph that makes one result of each input: use feed and fetch")
        with self._lock:
            if self._runner is None and not self._fed:
                self._run = replace(self._run, replies=True)
        self._fed = True
        runner = self._started()
        if runner is None:
            why = "it is closed" if self.error is None else getattr(self.error, "message", self.error)
            raise DfException(f"{self.name} cannot run: {why}", FAILED)
        with self._lock:
            if self._futures is None:
                self._futures = Futures(runner, self._plan, self._result, runner.is_ordered)
            return self._futures

    async def results(self, count: int | None = None) -> AsyncIterator[FlowResult]:
        """Return an asynchronous iterator over the results, until the end of the sequence or of the graph.

        Args:
            count: largest number of results; None for no limit.
        """
        import asyncio

        while count is None or count > 0:
            result = await asyncio.to_thread(self.fetch_result, None, 100)
            if result.is_late:
                continue
            yield result
            count = None if count is None else count - 1
            if result.info.flow_flags & FlowFlag.DATA_FLOW_FLAG_EOS or result.code in (FAILED, PARAM_INVALID):
                return

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until all results of the fed inputs have arrived; they can be fetched afterwards.

        Args:
            timeout: seconds; None for ever.

        Returns:
            Whether it has.
        """
        if self._futures is not None:
            return self._futures.drain(timeout)
        return self._runner is None or self._runner.drain(timeout)

    def close(self) -> None:
        """End the graph. Inputs in flight are lost, and their futures fail; nothing is left behind."""
        with self._lock:
            self._closed = True
            runner, self._runner = self._runner, None
        self._start_ended.set()
        if self._futures is not None:
            self._futures.close()
        if runner is not None:
            runner.close()

    def metrics(self) -> list[EdgeMetrics]:
        """Metrics of all edges; none before the graph runs."""
        return [] if self._runner is None else self._runner.metrics()

    def stage_metrics(self) -> list[StageMetrics]:
        """The calls of each stage's instances, with a histogram of their times.

        They are counted in a graph that was started by `submit`, `stream` or `start`; none before it runs. A call is
        counted after its results have been sent: a caller that has them may be a moment early.
        """
        return [] if self._runner is None else self._runner.stage_metrics()

    @property
    def restarts(self) -> int:
        """Number of times that a stage whose process had died was started again."""
        return 0 if self._runner is None else self._runner.restarts

    def trace(self, path: str | Path | None = None) -> dict[str, Any]:
        """Return the work of the stages in Chrome's trace format; the graph must have `trace=True`.

        Args:
            path: file to write it to as well; None for none.
        """
        found = {"traceEvents": []} if self._runner is None else self._runner.trace()
        if path is not None:
            Path(path).write_text(json.dumps(found), encoding="utf-8")
        return found

    def picture(self, path: str | Path | None = None) -> str:
        """Draw the graph as SVG, with the counters of its edges once it runs.

        Args:
            path: file to write it to as well; None for none.
        """
        from toprope.flow.observability.svg import svg

        text = svg(self._plan, self.metrics(), self.name)
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    def __enter__(self) -> FlowGraph:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _has_data(fetched: Fetched) -> bool:
    return bool(fetched.messages) and not fetched.errors

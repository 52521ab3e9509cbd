"""Run jobs on several cards: one engine per card, each in its own process, which `toprope.functions` starts.

Called by `toprope edit --cards` and `toprope ui --cards` (for `check_cards`); `runs.running` has the same for one
engine. Names of resources and `InvokeOptions` are those of `toprope.functions`. Results are written in the calling
process alone, and steps are not reported. Tests: tests/images/test_images_cards.py, tests/images/test_images_jobs.py.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import toprope.errors
from toprope.errors import EditError, TopropeError, UsageError
from toprope.images.results import EditResult
from toprope.images.runs.jobs import Job, Summary
from toprope.images.runs.output import Output, problem_of
from toprope.images.runs.running import Attempt, Listener, Problem, attempts, keep
from toprope.visible_devices import VARIABLE

__all__ = ["CardEditor", "check_cards", "kind_of", "run_on_cards"]

_POLL = 0.25
_KINDS = {"npu": "NPU", "cuda": "GPU"}

_log = logging.getLogger("toprope")


class CardEditor:
    """An engine on the card of its process.

    Args:
        model: the folder that a pipeline was saved to.
        options: arguments of `Engine.open`.
    """

    def __init__(self, model: str, options: Mapping[str, Any]) -> None:
        self._model, self._options = model, dict(options)
        self._engine: Any = None
        self._stopped = threading.Event()

    def open(self) -> Problem | None:
        """Load the model; return the problem if that fails."""
        from toprope.images.engine import Engine

        try:
            self._engine = Engine.open(self._model, **self._options)
        except Exception as error:
            return problem_of(error)
        return None

    def edit(self, jobs: Sequence[Job], at_once: int) -> list[Attempt]:
        """Do jobs; return parts of them with the results of each, see `toprope.images.runs.running.attempts`."""
        done = list(attempts(self._engine, jobs, _SilentListener(), self._why, at_once))
        for _, results in done:
            for result in results if isinstance(results, list) else ():
                result.record["card"] = os.environ.get(VARIABLE) or os.environ.get("CUDA_VISIBLE_DEVICES")
        return done

    def _why(self) -> str:
        return "stopped" if self._stopped.is_set() else ""

    def stop(self) -> None:
        """Stop after the current step; called in another thread while `edit` runs."""
        self._stopped.set()

    def close(self) -> None:
        """Release the card."""
        if self._engine is not None:
            self._engine.close()


class _SilentListener:
    """Listener that does nothing, as steps are not sent between processes."""

    def begin(self, jobs: Sequence[Job]) -> None:
        pass

    def step(self, step: Any) -> None:
        pass

    def end(self, event: Any) -> None:
        pass


def check_cards(cards: int, device: str | None) -> str:
    """Find the resource name of the cards in `toprope.functions`, and check their number.

    Args:
        cards: number of cards.
        device: "npu", "cuda", or None for the kind that is there.

    Raises:
        UsageError: there are fewer cards; or the device is a single card, or no kind of card.
    """
    from toprope.functions.deployment.discover import collect

    kind = None if device is None else _KINDS.get(device)
    if device is not None and kind is None:
        raise UsageError(
            f"several cards were asked for, and the device {device!r}.",
            looked_at="cards are taken by their kind, each by one process",
            do="give the device npu or cuda, or leave it out",
        )
    there = [card for card in collect("all") if card.healthy and kind in (None, card.vendor)]
    kind = kind or ("NPU" if any(card.vendor == "NPU" for card in there) else "GPU")
    count = sum(card.vendor == kind for card in there)
    if count < cards:
        raise UsageError(
            f"{cards} cards were asked for, and {count} can be used.",
            looked_at="what toprope devices lists", do="ask for fewer, or look at toprope doctor",
        )  # fmt: skip
    return f"{kind}/.+/count"


def kind_of(resource: str) -> str:
    """The kind of device of a resource from `check_cards`: "npu" or "cuda"."""
    vendor = resource.partition("/")[0]
    return next(name for name, each in _KINDS.items() if each == vendor)


def run_on_cards(
    model: str,
    options: Mapping[str, Any],
    jobs: Sequence[Job],
    output: Output,
    listener: Listener,
    *,
    cards: int,
    summary: Summary,
    stopped: Callable[[], str],
    ready: Callable[[], None],
    at_once: int = 1,
) -> None:
    """Do jobs on several cards, each on the card that is free next, and write the results in this process.

    If a process dies, its jobs fail, and another one takes its place.

    Args:
        model: the folder that a pipeline was saved to.
        options: arguments of `Engine.open`.
        jobs: the jobs to do.
        output: the folder for results.
        listener: called for jobs, but not for their steps.
        cards: number of cards.
        summary: counters that are updated.
        stopped: returns the reason to stop; empty to go on.
        ready: called when jobs begin.
        at_once: number of pictures that go through a model at once.

    Raises:
        UsageError: there are fewer cards.
        TopropeError: the model cannot be opened on any of them.
    """
    from toprope import functions as yr

    resource = check_cards(cards, options.get("device"))
    named = kind_of(resource)
    yr.init(yr.Config(invoke_timeout=-1))
    try:
        # by name: a process that does not see its card must not go on with the CPU
        editors = _Editors(model, {**options, "device": named}, resource, cards)
        editors.open()
        ready()
        groups = deque(jobs[start : start + at_once] for start in range(0, len(jobs), at_once))
        _run_on_free_cards(editors, groups, output, listener, summary, stopped, at_once)
        editors.close()
    finally:
        yr.finalize()


class _Editors:
    """A `CardEditor` for each card: those that are free, and those that edit now."""

    def __init__(self, model: str, options: Mapping[str, Any], resource: str, cards: int) -> None:
        from toprope import functions as yr

        self._arguments = model, dict(options)
        asked = yr.InvokeOptions(cpu=1, memory=1, concurrency=2, custom_resources={resource: 1})
        self._made = yr.instance(CardEditor).options(asked)
        self.cards = cards
        self.free: list[Any] = []
        self.busy: dict[Any, tuple[Any, Sequence[Job]]] = {}

    def open(self) -> None:
        """Load the model on each card. It must succeed on one; a failure on others is a warning."""
        from toprope import functions as yr

        made = [self._made.invoke(*self._arguments) for _ in range(self.cards)]
        opening = [editor.open.invoke() for editor in made]
        problems = []
        for editor, ref in zip(made, opening, strict=True):
            try:
                problem = yr.get(ref, timeout=-1)
            except Exception as error:
                problem = problem_of(error)
            if problem is None:
                self.free.append(editor)
            else:
                problems.append(problem)
                editor.terminate()
        if not self.free:
            raise _error_of(problems[0])
        for problem in problems:
            _log.warning("a card is left out: %s", problem["what"])

    def replace(self, editor: Any) -> None:
        """Start another editor in place of one that died, if possible."""
        from toprope import functions as yr

        try:
            editor.terminate()
            other = self._made.invoke(*self._arguments)
            problem = yr.get(other.open.invoke(), timeout=-1)
        except Exception as error:
            problem = problem_of(error)
        if problem is None:
            self.free.append(other)
        else:
            _log.warning("a card is left out: %s", problem["what"])

    def close(self) -> None:
        """End all of them."""
        for editor in self.free:
            editor.terminate()


def _run_on_free_cards(
    editors: _Editors,
    groups: deque[Sequence[Job]],
    output: Output,
    listener: Listener,
    summary: Summary,
    stopped: Callable[[], str],
    at_once: int,
) -> None:
    """Give each group of jobs to the card that is free next; write results as they come."""
    from toprope import functions as yr

    while True:
        if stopped() and not summary.stopped:
            summary.stopped = stopped()
            groups.clear()
            for editor, _ in editors.busy.values():
                editor.stop.invoke()
        while groups and editors.free:
            editor, group = editors.free.pop(), groups.popleft()
            listener.begin(group)
            editors.busy[editor.edit.invoke(group, at_once)] = editor, group
        if not editors.busy:
            break
        ended, _ = yr.wait(list(editors.busy), 1, _POLL)
        for ref in ended:
            editor, group = editors.busy.pop(ref)
            try:
                parts: list[Attempt] = yr.get(ref, timeout=-1)
            except Exception as error:
                parts = [(group, problem_of(EditError(f"the process of a card ended: {error}", do="try it again")))]
                editors.replace(editor)
            else:
                editors.free.append(editor)
            for part, results in parts:
                _write_results(part, results, output, listener, summary)
    for group in groups:
        problem = problem_of(EditError("no card is left.", looked_at="the processes of all cards ended"))
        _write_results(group, problem, output, listener, summary)


def _write_results(part: Sequence[Job], results: Any, output: Output, listener: Listener, summary: Summary) -> None:
    """Write the results of jobs, unless they were stopped."""
    if results is None:
        return
    for at, job in enumerate(part):
        result: EditResult | Problem = results if isinstance(results, dict) else results[at]
        if isinstance(result, EditResult):
            for notice in result.record.get("notices", ()):
                _log.warning("%s", notice)
        keep(job, result, output, listener, summary)


def _error_of(problem: Problem) -> TopropeError:
    """Make the error that another process had."""
    kind = getattr(toprope.errors, problem["kind"], None)
    made = kind if isinstance(kind, type) and issubclass(kind, TopropeError) else EditError
    return made(problem["what"], problem["looked_at"] or "", problem["do"] or "")

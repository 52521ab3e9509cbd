"""The live panel: device, model and memory use, as HTML.

Called by `web.page.app` every second or two; facts come from `Controller.facts`, texts from `web.texts`. All facts are
escaped. The `data-` attributes and classes are read by tests and by `page.theme`. Tests:
tests/images/test_images_web.py, tests/images/test_images_texts.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from toprope.images.web.job_queue import Problem, State, View
from toprope.images.web.texts import ENGLISH, Words
from toprope.sizes import gibibytes

__all__ = ["bar", "panel_html", "problem_html", "progress_html", "status_html"]


def bar(part: float, kind: str = "") -> str:
    """A bar that is filled to a fraction from 0 to 1."""
    wide = 100 * min(max(part, 0.0), 1.0)
    return f'<div class="bar {escape(kind)}"><div style="width:{wide:.1f}%"></div></div>'


def problem_html(problem: Problem, words: Words = ENGLISH) -> str:
    """An error with what helps against it."""
    rows = [f"<b>{escape(words.message(problem.what))}</b>"]
    if problem.do:
        rows.append(f'<span class="do">{words("do")}</span> {escape(words.message(problem.do))}')
    if problem.looked_at:
        rows.append(f'<span class="do">{words("looked_at")}</span> {escape(problem.looked_at)}')
    return f'<div class="problem" role="alert">{"<br>".join(rows)}</div>'


def status_html(facts: Mapping[str, Any], words: Words = ENGLISH) -> str:
    """The line below the page's title: the model's state, or the reason of its failure."""
    model = facts["model"]
    title = f"<h1>{words('title')}</h1>"
    name = f"<b>{escape(str(model['name']))}</b>"
    if model["state"] == "failed":
        return (
            f'<div class="status" data-state="failed">{title}{problem_html(Problem(**model["problem"]), words)}</div>'
        )
    if model["state"] == "loading":
        said = f"{escape(words.message(str(model['note'])))} · {words('seconds', seconds=model['seconds'])}"
        lamp = '<span class="dot loading"></span>'
        return f'<div class="status" data-state="loading">{title}{lamp}{name} {words("is_loading")}: {said}</div>'
    about = [escape(str(each)) for each in (facts.get("pipeline"), facts.get("device"), facts.get("dtype")) if each]
    if facts.get("simulated"):
        about.append(words("simulated"))
    return (
        f'<div class="status" data-state="ready">{title}<span class="dot ready"></span>{name} {words("is_ready")}: '
        f"{' · '.join(about)}</div>"
    )


def _row(name: str, value: str, *, what: str = "") -> str:
    mark = f' data-what="{escape(what)}"' if what else ""
    return f"<tr><th>{escape(name)}</th><td{mark}>{value}</td></tr>"


def panel_html(facts: Mapping[str, Any], words: Words = ENGLISH) -> str:
    """The panel as a table."""
    rows = []
    if facts.get("device"):
        name = str(facts.get("device_name") or "")
        if facts.get("simulated"):
            name += f" ({words('simulated_short')})"
        rows.append(_row(words("device"), f"{escape(str(facts['device']))} · {escape(name)}", what="device"))
        rows.append(_row(words("dtype"), escape(str(facts["dtype"]))))
        rows.append(_row(words("attention"), escape(str(facts.get("attention") or words("attention_unknown")))))
        rows.append(_row(words("memory_ladder"), escape(str(facts.get("rung")))))
        if facts.get("loras"):
            rows.append(_row(words("loras"), escape(", ".join(facts["loras"]))))
    memory = facts.get("memory") or {}
    free, total = memory.get("free"), memory.get("total")
    if total:
        used = total - (free or 0)
        said = words("in_use_of", used=gibibytes(used), total=gibibytes(total))
        rows.append(_row(words("in_use"), f"{said}{bar(used / total, 'memory')}", what="used"))
    for name in ("allocated", "reserved", "peak"):
        if memory.get(name) is not None:
            rows.append(_row(words(name), gibibytes(memory[name]), what=name))
    rows.append(_row(words("queue"), escape(queue_text(facts["queue"], words)), what="queue"))
    return f'<table class="facts">{"".join(rows)}</table>'


def queue_text(queue: Mapping[str, Any], words: Words = ENGLISH) -> str:
    """The queue in a line."""
    if queue["running"]:
        known = queue["step"] is not None
        now = words("one_runs_step", step=queue["step"], of=queue["of"]) if known else words("one_runs")
    else:
        now = words("nothing_runs")
    ends = [words(f"{state}_count", count=queue[state]) for state in ("done", "failed", "cancelled") if queue[state]]
    return "; ".join([now, words("waiting_count", count=queue["waiting"]), *ends])


def progress_html(view: View | None, parts: int = 0, notes: Sequence[str] = (), words: Words = ENGLISH) -> str:
    """Progress of a job, for the line above the results.

    Args:
        view: snapshot of the job; None before the first job.
        parts: number of parts of a batch; 0 for a single edit.
        notes: remarks on the result.
        words: texts in the language of the page.
    """
    if view is None:
        return '<div class="progress" data-state="none"></div>'
    step = view.step
    done, told, marks = 0.0, list[str](), f'data-state="{view.state}"'
    if view.state is State.WAITING:
        if view.ahead:
            told = [words("waiting_ahead_one" if view.ahead == 1 else "waiting_ahead", count=view.ahead)]
        else:
            told = [words("waiting_next")]
        marks += f' data-ahead="{view.ahead}"'
    elif view.state is State.FAILED:
        return f'<div class="progress" {marks}>{problem_html(view.problem or Problem(words("it_failed")), words)}</div>'
    elif view.state is State.CANCELLED:
        after = step and words("cancelled_after", step=step.number, of=step.of)
        told = [after or words("cancelled")]
        if parts:
            told.append(words("were_done", done=view.parts, of=parts))
    elif view.state is State.DONE:
        done = 1.0
        told = [words("done_in", seconds=view.seconds)]
        if parts:
            told.append(words("pictures_done", done=view.parts, of=parts))
    else:
        if parts:
            told.append(words("picture_of", at=min(view.parts + 1, parts), of=parts))
        if step is None:
            told.append(words.message(view.note) or words("beginning"))
        else:
            told += [words("step_of", step=step.number, of=step.of), words("each_step", seconds=step.seconds_each)]
            if step.stage not in ("", "edit"):
                told.append(step.stage)
            if step.left >= 1:
                told.append(words("left_over", seconds=step.left))
            done = step.number / step.of
        if parts:
            done = (view.parts + done) / parts
    if step is not None:
        marks += f' data-step="{step.number}" data-of="{step.of}"'
    said = "".join(f'<span class="note">{escape(words.message(note))}</span>' for note in notes)
    return f'<div class="progress" {marks}>{bar(done)}<span>{escape(" · ".join(told))}</span>{said}</div>'

"""The live panel: what is in use and how full the device is, as facts and as HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from toprope.images.web.desk import Problem, State, View
from toprope.sizes import gibibytes

__all__ = ["bar", "panel_html", "problem_html", "progress_html", "status_html"]


def bar(part: float, kind: str = "") -> str:
    """A bar that is filled for a part from 0 to 1."""
    wide = 100 * min(max(part, 0.0), 1.0)
    return f'<div class="bar {escape(kind)}"><div style="width:{wide:.1f}%"></div></div>'


def problem_html(problem: Problem) -> str:
    """An error with what helps against it."""
    rows = [f"<b>{escape(problem.what)}</b>"]
    if problem.do:
        rows.append(f'<span class="do">do</span> {escape(problem.do)}')
    if problem.looked_at:
        rows.append(f'<span class="do">looked at</span> {escape(problem.looked_at)}')
    return f'<div class="problem" role="alert">{"<br>".join(rows)}</div>'


def status_html(facts: Mapping[str, Any]) -> str:
    """The line below the page's title: what loads, what is ready, or why it failed."""
    model = facts["model"]
    title = "<h1>Edit pictures by instruction</h1>"
    name = f"<b>{escape(str(model['name']))}</b>"
    if model["state"] == "failed":
        return f'<div class="status" data-state="failed">{title}{problem_html(Problem(**model["problem"]))}</div>'
    if model["state"] == "loading":
        said = f"{escape(str(model['note']))} · {model['seconds']:.0f} s"
        lamp = '<span class="dot loading"></span>'
        return f'<div class="status" data-state="loading">{title}{lamp}{name} is loading: {said}</div>'
    words = [escape(str(word)) for word in (facts.get("pipeline"), facts.get("device"), facts.get("dtype")) if word]
    if facts.get("simulated"):
        words.append("simulated card")
    return (
        f'<div class="status" data-state="ready">{title}<span class="dot ready"></span>{name} is ready: '
        f"{' · '.join(words)}</div>"
    )


def _row(name: str, value: str, *, what: str = "") -> str:
    mark = f' data-what="{escape(what)}"' if what else ""
    return f"<tr><th>{escape(name)}</th><td{mark}>{value}</td></tr>"


def panel_html(facts: Mapping[str, Any]) -> str:
    """The panel as a table."""
    rows = []
    if facts.get("device"):
        name = str(facts.get("device_name") or "")
        if facts.get("simulated"):
            name += " (simulated)"
        rows.append(_row("device", f"{escape(str(facts['device']))} · {escape(name)}", what="device"))
        rows.append(_row("dtype", escape(str(facts["dtype"]))))
        rows.append(_row("attention", escape(str(facts.get("attention") or "not known before the first edit"))))
        rows.append(_row("memory ladder", escape(str(facts.get("rung")))))
        if facts.get("loras"):
            rows.append(_row("LoRAs", escape(", ".join(facts["loras"]))))
    memory = facts.get("memory") or {}
    free, total = memory.get("free"), memory.get("total")
    if total:
        used = total - (free or 0)
        rows.append(
            _row("in use", f"{gibibytes(used)} of {gibibytes(total)}{bar(used / total, 'memory')}", what="used")
        )
    for name in ("allocated", "reserved", "peak"):
        if memory.get(name) is not None:
            rows.append(_row(name, gibibytes(memory[name]), what=name))
    rows.append(_row("queue", escape(queue_text(facts["queue"])), what="queue"))
    return f'<table class="facts">{"".join(rows)}</table>'


def queue_text(queue: Mapping[str, Any]) -> str:
    """The queue in a line."""
    if queue["running"]:
        now = "one runs" if queue["step"] is None else f"one runs, step {queue['step']} of {queue['of']}"
    else:
        now = "nothing runs"
    ends = [f"{queue[state]} {state}" for state in ("done", "failed", "cancelled") if queue[state]]
    return "; ".join([now, f"{queue['waiting']} waiting", *ends])


def progress_html(view: View | None, parts: int = 0, notes: Sequence[str] = ()) -> str:
    """Where a job is, as the line above the results.

    Args:
        view: of the job; None before the first.
        parts: of how many parts it is, for a batch; 0 for one edit.
        notes: what there is to know about what came of it.
    """
    if view is None:
        return '<div class="progress" data-state="none"></div>'
    step = view.step
    done, words, marks = 0.0, [], f'data-state="{view.state}"'
    if view.state is State.WAITING:
        if view.ahead:
            words = [f"waiting: {view.ahead} edit{'' if view.ahead == 1 else 's'} before this one"]
        else:
            words = ["waiting: next"]
        marks += f' data-ahead="{view.ahead}"'
    elif view.state is State.FAILED:
        return f'<div class="progress" {marks}>{problem_html(view.problem or Problem("it failed."))}</div>'
    elif view.state is State.CANCELLED:
        words = ["cancelled" if step is None else f"cancelled after step {step.number} of {step.of}"]
        if parts:
            words.append(f"{view.parts} of {parts} pictures were done")
    elif view.state is State.DONE:
        done = 1.0
        words = [f"done in {view.seconds:.1f} s"]
        if parts:
            words.append(f"{view.parts} of {parts} pictures")
    else:
        if parts:
            words.append(f"picture {min(view.parts + 1, parts)} of {parts}")
        if step is None:
            words.append(view.note or "beginning")
        else:
            words += [f"step {step.number} of {step.of}", f"{step.seconds_each:.2g} s/step"]
            if step.stage not in ("", "edit"):
                words.append(step.stage)
            if step.left >= 1:
                words.append(f"{step.left:.0f} s left")
            done = step.number / step.of
        if parts:
            done = (view.parts + done) / parts
    if step is not None:
        marks += f' data-step="{step.number}" data-of="{step.of}"'
    said = "".join(f'<span class="note">{escape(note)}</span>' for note in notes)
    return f'<div class="progress" {marks}>{bar(done)}<span>{escape(" · ".join(words))}</span>{said}</div>'

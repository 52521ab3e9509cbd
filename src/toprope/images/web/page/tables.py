"""Tables and texts of the page, as HTML: pictures of a batch, parameters of a picture, the queue, refined text.

Called by `web.page.app`. Everything that a user wrote is escaped here. The `data-` attributes and classes are read by
tests and by `page.theme`; all else of the layout is free. Tests: tests/images/test_images_web.py,
tests/images/test_images_messages.py, tests/images/test_images_texts.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from toprope.images.web.controller import Brought, Place, Row
from toprope.images.web.job_queue import State
from toprope.images.web.sessions import Step
from toprope.images.web.texts import ENGLISH, Words

__all__ = ["brought_html", "ended_html", "parameters_html", "queue_html", "refined_text", "rows_html"]


def rows_html(
    rows: Sequence[Row],
    names: Sequence[str],
    words: Words = ENGLISH,
    state: State = State.WAITING,
    running: Sequence[int] = (),
) -> str:
    """The pictures of a batch: finished ones with their results, running ones, and waiting ones.

    Args:
        rows: the finished pictures.
        names: names of all files.
        words: texts in the language of the page.
        state: state of the batch. If it ended early, pictures that had not begun are cancelled.
        running: indices of the running pictures.
    """
    lines, over = [], {row.at: row for row in rows}
    for at, name in enumerate(names):
        row = over.get(at)
        if row is None:
            now = State.CANCELLED if state.over else State.RUNNING if at in running else State.WAITING
            ended, said = str(now), ""
        elif row.entry is not None:
            ended, said = "done", escape(words("row_done", name=row.entry.picture.name, seed=row.entry.seed))
        else:
            problem = row.problem
            ended = "failed"
            said = "" if problem is None else _problem(problem.what, problem.do, words)
        lines.append(f'<tr data-state="{ended}"><td>{escape(name)}</td><td>{words(ended)}</td><td>{said}</td></tr>')
    return f'<table class="facts rows">{"".join(lines)}</table>' if lines else ""


def _problem(what: str, do: str, words: Words) -> str:
    return escape(words.message(what)) + (
        f' <span class="do">{words("do")}</span> {escape(words.message(do))}' if do else ""
    )


def parameters_html(found: Mapping[str, Any] | None, words: Words = ENGLISH) -> str:
    """The parameters of a picture as a table, by their names in records."""
    if found is None:
        return f'<div class="hint">{words("choose")}</div>'
    lines = []
    for name, value in found.items():
        if name == "notices":
            said = "; ".join(words.message(each) for each in value)
        elif name == "reworded":
            said = words.message(str(value))
        else:
            said = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        lines.append(f"<tr><th>{escape(words.message(name.replace('_', ' ')))}</th><td>{escape(said)}</td></tr>")
    return f'<table class="facts">{"".join(lines)}</table>'


def refined_text(instruction: str, refinement: Mapping[str, Any] | None, words: Words = ENGLISH) -> str:
    """Instruction that the model got, with the reason where it was not refined."""
    if refinement is None or refinement.get("refined", True):
        return instruction
    reason = refinement.get("reason")
    return f"{instruction}\n({words('unrefined', reason=words.message(str(reason)))})" if reason else instruction


def ended_html(steps: Sequence[Step], words: Words = ENGLISH) -> str:
    """The edits without a picture: the request, and the reason."""
    lines = []
    for step in steps:
        problem = step.problem or {}
        said = _problem(str(problem.get("what") or ""), str(problem.get("do") or ""), words)
        asked = escape(str((step.request or {}).get("instruction", "")))
        state = words(str(step.state))
        lines.append(f'<tr data-state="{step.state}"><td>{asked}</td><td>{state}</td><td>{said}</td></tr>')
    return f'<table class="facts rows">{"".join(lines)}</table>' if lines else ""


def brought_html(brought: Brought, words: Words = ENGLISH) -> str:
    """A note on a picture that says how it was made."""
    said = words("brought", name=brought.step.name)
    if brought.missing:
        said += " " + words("brought_missing", missing=", ".join(brought.missing))
    return f'<div class="hint" role="status">{escape(said)}</div>'


def queue_html(places: Sequence[Place], words: Words = ENGLISH) -> str:
    """Table of the queue, in the order in which it is done; empty where nothing runs and nothing waits."""
    lines = []
    for at, place in enumerate(places, 1):
        view, about = place.view, [place.title] if place.title else []
        if place.pictures:
            done = {"done": view.parts, "of": place.pictures}
            about.append(
                words("pictures_done", **done) if view.parts else words("pictures_count", count=place.pictures)
            )
        if view.state is State.RUNNING and view.step is not None:
            about.append(words("step_of", step=view.step.number, of=view.step.of))
        said = " · ".join([words(place.owner), *about])
        lines.append(
            f'<tr data-state="{view.state}" data-owner="{place.owner}"><td>{at}. {words(str(view.state))}</td>'
            f"<td>{escape(said)}</td></tr>"
        )
    if not lines:
        return ""
    return f'<table class="facts queue"><caption>{words("queue")}</caption>{"".join(lines)}</table>'

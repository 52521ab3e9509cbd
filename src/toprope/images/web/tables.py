"""Tables and texts of the page, as HTML: the pictures of a batch, the parameters of one, what a refiner said."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from toprope.images.web.sessions import Step
from toprope.images.web.studio import Brought, Row

__all__ = ["brought_html", "ended_html", "parameters_html", "refined_text", "rows_html"]


def rows_html(rows: Sequence[Row], names: Sequence[str]) -> str:
    """The pictures of a batch: those that are over with what came of them, those that wait.

    Args:
        rows: in order.
        names: of all files.
    """
    lines = []
    for at, name in enumerate(names):
        row = rows[at] if at < len(rows) else None
        if row is None:
            state, said = "waiting", ""
        elif row.entry is not None:
            state, said = "done", f"{escape(row.entry.picture.name)}, seed {row.entry.seed}"
        else:
            problem = row.problem
            state = "failed"
            said = "" if problem is None else f'{escape(problem.what)} <span class="do">do</span> {escape(problem.do)}'
        lines.append(f'<tr data-state="{state}"><td>{escape(name)}</td><td>{state}</td><td>{said}</td></tr>')
    return f'<table class="facts rows">{"".join(lines)}</table>' if lines else ""


def parameters_html(found: Mapping[str, Any] | None) -> str:
    """The parameters of a picture as a table."""
    if found is None:
        return '<div class="hint">Choose a picture to see how it was made.</div>'
    lines = []
    for name, value in found.items():
        said = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        lines.append(f"<tr><th>{escape(name.replace('_', ' '))}</th><td>{escape(said)}</td></tr>")
    return f'<table class="facts">{"".join(lines)}</table>'


def refined_text(instruction: str, refinement: Mapping[str, Any] | None) -> str:
    """What the model was told, and why it was not refined where it was not."""
    if refinement is None or refinement.get("refined", True):
        return instruction
    reason = refinement.get("reason")
    return f"{instruction}\n(as you wrote it: {reason})" if reason else instruction


def ended_html(steps: Sequence[Step]) -> str:
    """The edits that ended without a picture: what was asked for, and why there is none."""
    lines = []
    for step in steps:
        problem = step.problem or {}
        said = escape(str(problem.get("what") or ""))
        if problem.get("do"):
            said += f' <span class="do">do</span> {escape(str(problem["do"]))}'
        asked = escape(str((step.request or {}).get("instruction", "")))
        lines.append(f'<tr data-state="{step.state}"><td>{asked}</td><td>{step.state}</td><td>{said}</td></tr>')
    return f'<table class="facts rows">{"".join(lines)}</table>' if lines else ""


def brought_html(brought: Brought) -> str:
    """A note on a picture that says how it was made."""
    said = f"{escape(brought.step.name)} says how it was made: the form has its settings now."
    if brought.missing:
        said += f" Not on this page: {escape(', '.join(brought.missing))}."
    return f'<div class="hint" role="status">{said}</div>'

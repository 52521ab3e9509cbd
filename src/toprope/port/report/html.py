"""The findings as a page: totals, filters, and each file's diff side by side. One file that loads nothing. Pure.

Called by `cli.port --format html`; the drawing of pages is `toprope.drawing`. Tests: tests/port/test_port_reports.py.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape

from toprope.drawing import page
from toprope.port.finding import Finding, Ported
from toprope.port.rule import HINT, Kind

__all__ = ["html"]

_AROUND = 3
"""Lines around a change that are shown."""

_KINDS = {
    str(Kind.PRESERVING): "the same on CUDA, and works elsewhere",
    str(Kind.REVIEW): "look at it: numerics, speed or the branch may change off CUDA",
    str(Kind.NOT_CONVERTIBLE): "needs another kernel or tool",
    HINT: "advice on code that is not CUDA's; no site",
}

_STYLE = """
:root { --line: #8884; --p: #2e7d32; --r: #b26a00; --n: #b3261e; --old: #f443361f; --new: #4caf5022 }
body { max-width: 78rem }
h1 { font-size: 1.4rem } h2 { font: 600 1rem ui-monospace, monospace; margin: 2rem 0 .4rem; overflow-wrap: anywhere }
table { border-collapse: collapse; width: 100% } td, th { border-bottom: 1px solid var(--line); padding: .15rem .5rem;
text-align: left; vertical-align: top } .totals { width: auto } .totals td:nth-child(2) { text-align: right }
code, .code { font: 13px/1.4 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere }
.P { color: var(--p) } .R { color: var(--r) } .N { color: var(--n) }
.number { color: #888; text-align: right; width: 3rem }
.diff { table-layout: fixed } .diff td { border: 0; padding: 0 .4rem } .old { background: var(--old) }
.new { background: var(--new) } .gap td { border-top: 1px dashed var(--line); height: .4rem }
form { border: 1px solid var(--line); border-radius: .4rem; display: flex; flex-wrap: wrap; gap: .3rem 1rem;
padding: .5rem }
.off { display: none }
"""

_SCRIPT = """
const form = document.querySelector("form");
function filter() {
  const kinds = new Set(new FormData(form).getAll("kind")), rule = form.rule.value;
  for (const file of document.querySelectorAll("section")) {
    let shown = 0;
    for (const row of file.querySelectorAll("tr[data-kind]")) {
      const on = kinds.has(row.dataset.kind) && (!rule || row.dataset.rule === rule);
      row.classList.toggle("off", !on);
      shown += on;
    }
    file.classList.toggle("off", !shown && file.dataset.findings !== "0");
  }
}
form.addEventListener("input", filter);
"""


def html(files: Sequence[Ported], title: str) -> str:
    """The page.

    Args:
        files: what the port said about each; those without a finding are only counted.
        title: what was looked at.
    """
    findings = [finding for file in files for finding in file.findings]
    shown = [file for file in files if file.findings or file.skipped]
    body = [*_totals(files, findings), *_filters(findings), *(part for file in shown for part in _file(file))]
    return page(f"toprope port: {title}", *body, style=_STYLE, script=_SCRIPT)


def _totals(files: Sequence[Ported], findings: Sequence[Finding]) -> Iterator[str]:
    kinds = Counter(finding.label for finding in findings)
    sites = len(findings) - kinds[HINT]
    converted = sum(finding.converted for finding in findings)
    rate = f"{100 * converted / sites:.0f} %" if sites else "nothing to convert"
    rows = [
        ("files looked at", len(files)),
        ("files with sites", sum(bool(file.sites) for file in files)),
        ("files that change", sum(file.changed for file in files)),
        ("files skipped", sum(bool(file.skipped) for file in files)),
        ("sites", sites),
        *((f"{kind}: {text}", kinds[kind]) for kind, text in _KINDS.items()),
        ("sites rewritten", f"{converted} ({rate})" if sites else 0),
    ]
    yield "<table class=totals>"
    yield from (f"<tr><td>{escape(name)}</td><td>{value}</td></tr>" for name, value in rows)
    yield "</table>"


def _filters(findings: Sequence[Finding]) -> Iterator[str]:
    counts = Counter(finding.rule.code for finding in findings)
    titles = {finding.rule.code: finding.rule.title for finding in findings}
    yield "<form onsubmit='return false'>"
    for kind in _KINDS:
        yield f"<label class={kind}><input type=checkbox name=kind value={kind} checked> {kind}</label>"
    yield "<label>rule <select name=rule><option value=''>all</option>"
    for code in sorted(counts):
        yield f"<option value={code}>{code} ({counts[code]}) {escape(titles[code][:70])}</option>"
    yield "</select></label></form>"


def _file(file: Ported) -> Iterator[str]:
    yield f"<section data-findings={len(file.findings)}><h2>{escape(file.path)}</h2>"
    if file.skipped:
        yield f"<p>skipped: {escape(file.skipped)}</p></section>"
        return
    yield "<table>"
    for finding in file.findings:
        yield _row(finding)
    yield "</table>"
    if file.changed:
        yield from _diff(file)
    yield "</section>"


def _row(finding: Finding) -> str:
    place = f"{finding.line}" if finding.cell is None else f"cell {finding.cell}: {finding.line}"
    text = finding.said
    if finding.held_back:
        text += f" (not rewritten: {finding.held_back})"
    if finding.seen:
        text += f" (asked {finding.seen} times in the trace)"
    if finding.known:
        text += " (in the baseline)"
    told = f"<code>{escape(finding.before[:300])}</code>"
    if finding.converted:
        told += f" &rarr; <code>{escape(finding.after[:300])}</code>"
    return (
        f"<tr data-kind={finding.label} data-rule={finding.rule.code}><td class=number>{place}</td>"
        f"<td class={finding.label}>{finding.rule.code} {finding.label}</td><td>{told}</td><td>{escape(text)}</td></tr>"
    )


def _lines(data: bytes) -> list[str]:
    return data.decode("utf-8", errors="replace").splitlines()


def _diff(file: Ported) -> Iterator[str]:
    """The changed lines of a file and those around them, before on the left and after on the right."""
    before, after = _lines(file.before), _lines(file.after)
    yield "<table class=diff>"
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for number, group in enumerate(matcher.get_grouped_opcodes(_AROUND)):
        if number:
            yield "<tr class=gap><td colspan=4></td></tr>"
        for tag, low, high, start, end in group:
            for step in range(max(high - low, end - start)):
                left = low + step if low + step < high else None
                right = start + step if start + step < end else None
                changed = tag != "equal"
                yield (
                    "<tr>"
                    + _side(before, left, "old" if changed else "")
                    + _side(after, right, "new" if changed else "")
                    + "</tr>"
                )
    yield "</table>"


def _side(lines: Sequence[str], index: int | None, style: str) -> str:
    if index is None:
        return "<td class=number></td><td></td>"
    return f'<td class=number>{index + 1}</td><td class="code {style}">{escape(lines[index])}</td>'

"""The page of `toprope run --report FILE.html`: the facts of a rehearsal, in the order in which users ask. Pure.

Called by `rehearsal_file`. The drawing is `toprope.drawing`, the facts are `sim.rehearsal.facts`, so a fact that is
added there shows up only when a part of the page is written for it here. The page loads nothing, every text of the
program is escaped, and each figure says whether it is measured, of a profile, or an estimate. Layout and words are
free. Tests: tests/cli/test_rehearsal_file.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from toprope import chips, sizes
from toprope.cli.reports.run_report import BOUNDS, STEPS, Outcome, finding_text, numbers_text
from toprope.drawing import Drawing, escaped, page, series
from toprope.estimate.cost.span import seconds_text
from toprope.sim.rehearsal.facts import MemoryOfCard, Rehearsal, place_text
from toprope.sim.rehearsal.record_file import KINDS, Held, Sample

__all__ = ["page_of"]

_STYLE = (
    "body{overflow-wrap:break-word}.wide{overflow-x:auto}"
    "h2{margin:2rem 0 .5rem;font-size:1.2rem}h3{margin:1rem 0 .25rem;font-size:1rem}"
    ".verdict{font-size:1.15rem;font-weight:600;padding:.6rem .8rem;border-radius:4px;background:$box}"
    ".verdict.bad{background:$band;color:$alarm}.note{color:$faint;font-size:.9rem}"
    "table{border-collapse:collapse;width:100%;font-size:.92rem}th,td{text-align:left;vertical-align:top;"
    "padding:.25rem .7rem .25rem 0;border-bottom:1px solid $band}td.n,th.n{text-align:right;white-space:nowrap}"
    "td:first-child{min-width:7.5rem;overflow-wrap:anywhere}"
    "code{font:13px ui-monospace,Menlo,Consolas,monospace}ol,ul{padding-left:1.3rem}li{margin:.25rem 0}"
    "figure svg{min-width:34rem}"
    "@media print{body{max-width:none;margin:0}h2,h3{break-after:avoid}tr,figure,li{break-inside:avoid}}"
)
_FIGURE_STYLE = ".limit{stroke:$alarm;stroke-width:1.5;stroke-dasharray:5 4;fill:none}.axis{stroke:$faint;fill:none}"
_LEFT, _TOP, _WIDTH, _HEIGHT = 78.0, 16.0, 640.0, 200.0
_MOST_WAITS = 40
_FROM_BELOW = ("weights", "optimizer", "gradients", "activations", "others")


def page_of(outcome: Outcome) -> str:
    """The report as an HTML page that loads nothing."""
    parts: list[Drawing | str] = []
    rehearsals = outcome.rehearsals
    if not rehearsals:
        parts.append('<p class="verdict">The program did not touch the card.</p>')
    for one in rehearsals:
        parts += _verdict(one, outcome)
        parts += _numbers(one, outcome.folder)
        parts += _time(one)
        parts += _operators(one, outcome.folder)
        for memory in one.memory:
            parts += _memory(memory, outcome.folder)
        parts += _waits(one, outcome.folder)
        parts += _cores(one, outcome)
    parts += _versions(rehearsals, outcome)
    chip = rehearsals[0].chip if rehearsals else outcome.choice.spec.chip if outcome.choice.spec else ""
    return page(f"Rehearsal on a simulated Ascend {chip}", *parts, style=_STYLE)


def _verdict(one: Rehearsal, outcome: Outcome) -> Iterator[str]:
    bad = ' class="verdict bad"' if one.findings else ' class="verdict"'
    yield f"<p{bad}>{escaped(one.verdict[:1].upper() + one.verdict[1:])}.</p>"
    yield (
        f'<p class="note">Numbers are {escaped(one.numbers)}. Times of the card are estimates. Counts are measured '
        f"in this run of {outcome.seconds:.1f} s; what is an estimate says so.</p>"
    )
    if one.findings:
        yield "<h2>Findings</h2>\n<ol>"
        yield from (f"<li>{escaped(finding_text(each, outcome.folder))}</li>" for each in one.findings)
        yield "</ol>"


def _numbers(one: Rehearsal, folder: str) -> Iterator[str]:
    if texts := numbers_text(one, folder):
        yield "<h2>Numbers</h2>\n<ul>"
        yield from (f"<li>{escaped(text)}</li>" for text in texts)
        yield "</ul>"


def _time(one: Rehearsal) -> Iterator[str]:
    """Yield the part about time: the step, what bounds it, all kinds of work."""
    timing = one.timing
    if timing is None:
        return
    yield "<h2>Time of the card: an estimate</h2>"
    if timing.unknown:
        yield f"<p>Not known: {escaped(timing.unknown)}.</p>"
        return
    bound = BOUNDS[timing.bound]
    name = STEPS[timing.steps[0]].capitalize() if timing.step else ""
    step = f"{name} takes {timing.step.text} (median of {timing.steps[1]}). " if timing.step else ""
    yield (
        f"<p>{escaped(step)}All that the program did on the card takes {escaped(timing.total.text)}; it is bound by "
        f"{bound}: the card is busy for {escaped(timing.card.text)}, and the host launches for "
        f"{escaped(timing.host.text)}, copies and waits take {escaped(timing.aside.text)}.</p>"
    )
    rows = [(kind, str(timing.calls.get(kind, 0)), span.text) for kind, span in timing.kinds.items()]
    yield _table(("operators", "launches", "time of the card"), rows, numbers=(1, 2))
    if timing.changes:
        yield "<h3>What would save most</h3>\n<ol>"
        yield from (f"<li>{escaped(each.saves.text)}: {escaped(each.what)}</li>" for each in timing.changes)
        yield "</ol>"
    yield (
        f'<p class="note">{escaped(timing.basis)}. The program\'s own code between operators is not in it: '
        f"{seconds_text(timing.own)} here, measured on this host.</p>"
    )


def _operators(one: Rehearsal, folder: str) -> Iterator[str]:
    """Yield the part about operators that are refused or run on the host."""
    totals = one.totals
    yield "<h2>Operators</h2>"
    yield (
        f"<p>{totals.operator_calls} calls of {len(totals.operators)} operators; refused: {len(one.of('refused'))}; "
        f"on the host: {len(one.of('host'))}.</p>"
    )
    rows = [
        (each.text, place_text(each.file, each.line, folder) if each.file else "", str(each.times), each.advice)
        for each in one.of("refused", "host")
    ]
    if rows:
        yield _table(("operator", "line", "times", "instead"), rows, numbers=(2,))
    if totals.on_host:
        copied = sum(each.bytes_to_host + each.bytes_back for each in totals.on_host)
        yield f'<p class="note">Copied for those on the host, both ways: {sizes.decimal(copied)}.</p>'
    for name, why in totals.perhaps_on_host:
        yield f'<p class="note">Perhaps on the host: {escaped(name)} ({escaped(why)}).</p>'
    for name, why in totals.slow:
        yield f'<p class="note">Known to be slow on the card: {escaped(name)} ({escaped(why)}).</p>'
    if totals.undocumented:
        names = ", ".join(f"{name} ({', '.join(dtypes)})" for name, dtypes in totals.undocumented.items())
        yield f'<p class="note">Assumed to run, as no document mentions these dtypes: {escaped(names)}.</p>'


def _memory(one: MemoryOfCard, folder: str) -> Iterator[Drawing | str]:
    """Yield the part about the memory of a card: verdict, peak, who holds it, a drawing over time."""
    basis = {"profile": "profile", "user": "set by the user", "nominal": "nominal: unknown"}[one.basis]
    least, most = map(sizes.gibibytes, one.need)
    yield f"<h2>Memory of {escaped(one.card)}: {one.fit}</h2>"
    needs = f"more than {least}" if one.ooms else f"{least} to {most}"
    yield (
        f"<p>Peak {sizes.gibibytes(one.peak)} (measured) of {sizes.gibibytes(one.capacity)} ({basis}). The program "
        f"needs {needs} (estimate: with {sizes.gibibytes(one.runtime)} of HCCL's buffers; the upper end adds unknown "
        "workspace, and all processes at their peaks at once).</p>"
    )
    if len(one.samples) > 1:
        yield _over_time(one)
    if one.lines:
        yield "<h3>At the peak</h3>"
        yield _holders(one.lines, one.kinds, folder)
    if one.shortage is not None:
        where = place_text(one.shortage.line.file, one.shortage.line.line, folder)
        yield f"<h3>When an allocation failed: {sizes.gibibytes(one.shortage.wanted)} more, {escaped(where)}</h3>"
        yield _holders(one.shortage.lines, one.shortage.kinds, folder)
        yield "<p>What would fit:</p>\n<ul>"
        yield from (f"<li>{escaped(each)}</li>" for each in one.shortage.advice)
        yield "</ul>"


def _holders(lines: Iterable[Held], kinds: Mapping[str, int], folder: str) -> str:
    shown = [kind for kind in reversed(KINDS) if kinds.get(kind)]
    rows = [
        (
            held.line.group or place_text(held.line.file, held.line.line, folder),
            *(sizes.gibibytes(held.bytes[kind]) if held.bytes.get(kind) else "" for kind in shown),
        )
        for held in lines
    ]
    total = ("all", *(sizes.gibibytes(kinds[kind]) for kind in shown))
    return _table(("line", *shown), [total, *rows], numbers=range(1, len(shown) + 1))


def _over_time(one: MemoryOfCard) -> Drawing:
    """A stacked area for each kind."""
    drawing = Drawing(f"Memory of {one.card} over time, by kind", _FIGURE_STYLE)
    end = one.samples[-1].seconds or 1.0
    top = max(_total(each) for each in one.samples)
    limit = one.capacity if top > one.capacity / 2 else 0
    scale = _HEIGHT / (max(top, limit) or 1)
    bottom = _TOP + _HEIGHT
    kinds = [kind for kind in _FROM_BELOW if any(each.bytes.get(kind) for each in one.samples)]
    below = [0] * len(one.samples)
    for number, kind in enumerate(kinds):
        above = [low + each.bytes.get(kind, 0) for low, each in zip(below, one.samples, strict=True)]
        upper = _corners(one.samples, above, end, scale, bottom)
        lower = _corners(one.samples, below, end, scale, bottom)
        steps: list[str | float] = []
        for place, (x, y) in enumerate((*upper, *reversed(lower))):
            steps += ["L" if place else "M", x, y]
        drawing.path(series(number), *steps, "z", tooltip=kind)
        below = above
    for share in (0.0, 0.5, 1.0):
        y = bottom - share * _HEIGHT
        drawing.path("axis", "M", _LEFT - 4, y, "h", 4)
        drawing.text(_LEFT - 8, y + 4, sizes.gibibytes(share * max(top, limit)), "small", anchor="end")
    drawing.path("axis", "M", _LEFT, _TOP, "V", bottom, "H", _LEFT + _WIDTH)
    if limit:
        drawing.path("limit", "M", _LEFT, bottom - limit * scale, "h", _WIDTH, tooltip="memory that a program gets")
    drawing.time_axis(_LEFT, bottom, _WIDTH, [f"{end * place / 4:.2f} s" for place in range(5)])
    keys = [(series(number), kind) for number, kind in enumerate(kinds)]
    height = drawing.legend(_LEFT, bottom + 32, keys, right=_LEFT + _WIDTH)
    drawing.description = (
        f"At the peak of {sizes.gibibytes(one.peak)}: "
        + ", ".join(f"{kind} {sizes.gibibytes(size)}" for kind, size in one.kinds.items())
        + ". Time is the host's."
    )
    drawing.width, drawing.height = _LEFT + _WIDTH + 24, height + 4
    return drawing


def _total(sample: Sample) -> int:
    return sum(sample.bytes.values())


def _corners(
    samples: Sequence[Sample], sums: Sequence[int], end: float, scale: float, bottom: float
) -> list[tuple[float, float]]:
    return [
        (_LEFT + _WIDTH * each.seconds / end, bottom - size * scale) for each, size in zip(samples, sums, strict=True)
    ]


def _waits(one: Rehearsal, folder: str) -> Iterator[str]:
    """Yield the part about copies and the lines that wait for the card."""
    (to, to_bytes), (back, back_bytes), (between, between_bytes) = one.totals.copies.values()
    yield "<h2>Copies and synchronisations</h2>"
    yield (
        f"<p>{to} copies to the card ({sizes.decimal(to_bytes)}), {back} back ({sizes.decimal(back_bytes)}), {between} "
        f"between cards ({sizes.decimal(between_bytes)}); {one.totals.synchronisations} synchronisations.</p>"
    )
    if one.waits:
        rows = [
            (
                place_text(each.file, each.line, folder), each.operation, str(each.waits), str(each.copies_back),
                f"yes: {each.steps}" if each.in_loop else each.steps,
            )
            for each in one.waits[:_MOST_WAITS]
        ]  # fmt: skip
        yield _table(("line", "operation", "waits", "copies back", "in a loop"), rows, numbers=(2, 3))
    names = {"training": "training", "inference": "inference", "forward": "forward passes with gradients"}
    steps = ", ".join(f"{one.steps[kind]} {name}" for kind, name in names.items() if one.steps[kind]) or "none"
    about = " The figures of lines are estimates from samples." if one.estimated else ""
    yield f'<p class="note">A line is in a loop when it waits in nearly every step. Steps seen: {steps}.{about}</p>'


def _cores(one: Rehearsal, outcome: Outcome) -> Iterator[str]:
    """Yield the part about streams and cores, with the check for deadlocks if it was made."""
    chip = chips.get(one.chip)
    yield "<h2>Streams and cores</h2>"
    assumed = one.totals.assumed_cores
    text = f"{chip.cube_cores or 'unknown'} cube and {chip.vector_cores or 'unknown'} vector cores a card (profile)."
    if assumed:
        text += f" Assumed core counts: {', '.join(assumed)}."
    yield f"<p>{escaped(text)}</p>"
    if outcome.cores is None:
        yield '<p class="note">Whether streams can deadlock for cores was not checked: --check-cores does.</p>'
    else:
        from toprope.terminal import render

        yield f"<pre>{escaped(render(*outcome.cores.text))}</pre>"


def _versions(rehearsals: Sequence[Rehearsal], outcome: Outcome) -> Iterator[str]:
    """Yield the part about versions, and where each kind of figure comes from."""
    from toprope import __version__

    yield "<h2>Versions and sources</h2>\n<ul>"
    for one in rehearsals:
        parts = [f"torch {one.torch_version}", one.totals.torch_npu, f"toprope {__version__}", f"chip {one.chip}"]
        yield f"<li>{escaped(', '.join(filter(None, parts)))}</li>"
    yield (
        "<li>Memory that a program gets, and cores: chip profile, with its sources in <code>toprope.chips</code></li>"
        "<li>Operators on the host: the vendor's source of that release "
        "(<code>toprope explain operators_by_release</code>)</li>"
        "<li>Refused dtypes: the vendor's documents of aclnn kernels (<code>toprope explain refusals</code>)</li>"
        "<li>Kinds of memory, steps and verdicts: <code>toprope explain run</code>. No real card was involved.</li>"
    )
    yield from (f"<li>{escaped(note)}</li>" for note in outcome.notes)
    yield "</ul>"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Iterable[int] = ()) -> str:
    right = set(numbers)

    def line(tag: str, cells: Sequence[str]) -> str:
        kinds = (' class="n"' if place in right else "" for place in range(len(cells)))
        return "".join(f"<{tag}{kind}>{escaped(cell)}</{tag}>" for kind, cell in zip(kinds, cells, strict=True))

    body = "\n".join(f"<tr>{line('td', row)}</tr>" for row in rows)
    head = f"<thead><tr>{line('th', header)}</tr></thead>"
    return f'<div class="wide"><table>\n{head}\n<tbody>\n{body}\n</tbody>\n</table></div>'

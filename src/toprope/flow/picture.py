"""Draws a graph as SVG, with the figures of its edges; pure.

It needs no script and nothing from elsewhere, and follows the reader's choice of light or dark. The elements carry
`data-` attributes (node, source, target), which the tests read.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from toprope.flow.graph import Plan

if TYPE_CHECKING:
    from toprope.flow.metrics import EdgeMetrics

__all__ = ["svg"]

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 150, 46, 170, 40, 24
_TOP = 56
_LETTERS = 20  # that fit into a box


def _theme(page: str, ink: str, faint: str, box: str, busy: str) -> str:
    return (
        f".page{{fill:{page}}}text{{fill:{ink}}}.small{{fill:{faint}}}.box{{fill:{box};stroke:{faint}}}"
        f".end{{fill:{page};stroke:{faint}}}.edge{{stroke:{faint}}}.head{{fill:{faint}}}.busy{{stroke:{busy}}}"
    )


_STYLE = (
    "text{font:12px system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif}"
    ".title{font-size:17px;font-weight:600}.name{font-weight:600}.small{font-size:11px}.edge{fill:none;stroke-width:1.6}"
    ".busy{stroke-width:2.6}"
    + _theme("#ffffff", "#16181d", "#50555f", "#e3effb", "#b3261e")
    + "@media (prefers-color-scheme:dark){"
    + _theme("#14161a", "#f2f3f5", "#b4bac4", "#1f3550", "#ff8a80")
    + "}"
)


def svg(plan: Plan, metrics: Sequence[EdgeMetrics] = (), title: str = "") -> str:
    """The picture: inputs on the left, what is fetched on the right, a box for each stage.

    Args:
        plan: the graph.
        metrics: the figures of its edges, in their order; empty for none.
        title: its headline.
    """
    columns = _columns(plan)
    places = {
        key: (_MARGIN + column * (_WIDTH + _GAP_X), _TOP + row * (_HEIGHT + _GAP_Y))
        for column, keys in enumerate(columns)
        for row, key in enumerate(keys)
    }
    width = 2 * _MARGIN + len(columns) * _WIDTH + (len(columns) - 1) * _GAP_X
    height = _TOP + max(map(len, columns)) * (_HEIGHT + _GAP_Y)
    parts = [_edges(plan, metrics, places)]
    for kind, number in places:
        name, below = _labels(plan, kind, number)
        x, y = places[kind, number]
        shape = "box" if kind == "node" else "end"
        radius = 6 if kind == "node" else _HEIGHT // 2
        parts.append(
            f'<g data-{kind}="{escape(name)}"><rect class="{shape}" x="{x}" y="{y}" width="{_WIDTH}" '
            f'height="{_HEIGHT}" rx="{radius}"/>'
            f'<text class="name" x="{x + _WIDTH / 2}" y="{y + 19}" text-anchor="middle">{escape(_fit(name))}</text>'
            f'<text class="small" x="{x + _WIDTH / 2}" y="{y + 35}" text-anchor="middle">{escape(_fit(below))}</text>'
            f"<title>{escape(name)}, {escape(below)}</title></g>"
        )
    head = escape(title or "Graph")
    said = f"{head}: {len(plan.nodes)} stages, {len(plan.inputs)} inputs, {len(plan.fetched)} outputs"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{said}"><title>{said}</title><style>{_STYLE}</style>'
        f'<rect class="page" width="{width}" height="{height}"/><text class="title" x="{_MARGIN}" y="30">{head}</text>'
        + "".join(parts)
        + "</svg>\n"
    )


def _columns(plan: Plan) -> list[list[tuple[str, int]]]:
    """What stands in which column: each stage one to the right of the last that it takes from."""
    depth = [0] * len(plan.nodes)
    for number in range(len(plan.nodes)):
        before = [depth[edge.source] for edge in plan.edges if edge.target == number and edge.source >= 0]
        depth[number] = 1 + max(before, default=0)
    last = 1 + max(depth)
    columns: list[list[tuple[str, int]]] = [[] for _ in range(last + 1)]
    columns[0] = [("input", number) for number in range(len(plan.inputs))]
    for number, column in enumerate(depth):
        columns[column].append(("node", number))
    columns[last] = [("output", number) for number in range(len(plan.fetched))]
    return columns


def _labels(plan: Plan, kind: str, number: int) -> tuple[str, str]:
    if kind == "input":
        return plan.inputs[number].name, "input"
    if kind == "output":
        return f"output {plan.order.index(number)}", "fetch"
    node = plan.nodes[number]
    return node.deploy_name, f"{node.input_num} in, {node.output_num} out"


def _fit(text: str) -> str:
    return text if len(text) <= _LETTERS else text[: _LETTERS - 1] + "…"


def _edges(plan: Plan, metrics: Sequence[EdgeMetrics], places: dict[tuple[str, int], tuple[int, int]]) -> str:
    parts = []
    labelled: dict[tuple[float, float], int] = {}
    for number, edge in enumerate(plan.edges):
        source = ("input", edge.output) if edge.source < 0 else ("node", edge.source)
        target = ("output", edge.input) if edge.target < 0 else ("node", edge.target)
        x1, y1 = places[source][0] + _WIDTH, places[source][1] + _HEIGHT / 2
        x2, y2 = places[target][0] - 7, places[target][1] + _port(plan, edge.target, edge.input)
        bend = _GAP_X / 2
        figures = metrics[number] if number < len(metrics) else None
        full = figures is not None and figures.depth >= figures.capacity
        names = f'data-source="{escape(_labels(plan, *source)[0])}" data-target="{escape(_labels(plan, *target)[0])}"'
        parts.append(
            f'<path class="edge{" busy" if full else ""}" {names} d="M{x1} {y1}C{x1 + bend} {y1} {x2 - bend} {y2} '
            f'{x2} {y2}"/><path class="head" d="M{x2 + 7} {y2}l-9 -4v8z"/>'
        )
        if figures is not None:
            middle = ((x1 + x2) / 2, (y1 + y2) / 2)
            shift = labelled.get(middle, 0)
            labelled[middle] = shift + 1
            lines = _figures(figures)
            parts += [
                f'<text class="small" x="{middle[0]}" y="{middle[1] - 8 - 13 * (len(lines) - 1 - place) + 34 * shift}" '
                f'text-anchor="middle">{escape(line)}</text>'
                for place, line in enumerate(lines)
            ]
    return "".join(parts)


def _port(plan: Plan, target: int, index: int) -> float:
    count = plan.nodes[target].input_num if target >= 0 else 1
    return _HEIGHT * ((index if target >= 0 else 0) + 1) / (count + 1)


def _figures(edge: EdgeMetrics) -> list[str]:
    copies = [
        f"{count} {what}"
        for count, what in ((edge.to_host, "to host"), (edge.between, "card to card"), (edge.lost, "lost"))
        if count
    ]
    lines = [f"{edge.messages} sent, {_size(edge.bytes)}", f"{edge.depth} of {edge.capacity} waiting"]
    return lines + ([", ".join(copies)] if copies else [])


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return ""

"""Drawing of a graph as SVG, with the metrics of its edges; pure.

For users (`FlowGraph.picture`). The elements carry `data-` attributes (node, source, target), which the tests read; all
else of the drawing may change. Colours and fonts are those of `toprope.drawing`. Tests: tests/flow/test_flow_graph.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from toprope.drawing import Drawing, fit
from toprope.flow.graph.nodes import Plan

if TYPE_CHECKING:
    from toprope.flow.observability.metrics import EdgeMetrics

__all__ = ["svg"]

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 150, 46, 170, 40, 24
_TOP = 56
_STYLE = (
    ".name{font-weight:600}.name,.small{pointer-events:none}.box{fill:$box;stroke:$faint}.end{fill:$page;stroke:$faint}"
    ".edge{stroke:$faint;fill:none;stroke-width:1.6}.head{fill:$faint}.busy{stroke:$alarm;stroke-width:2.6}"
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
    drawing = Drawing(title or "Graph", _STYLE)
    drawing.description = f"{len(plan.nodes)} stages, {len(plan.inputs)} inputs, {len(plan.fetched)} outputs"
    drawing.width = 2 * _MARGIN + len(columns) * _WIDTH + (len(columns) - 1) * _GAP_X
    drawing.height = _TOP + max(map(len, columns)) * (_HEIGHT + _GAP_Y)
    drawing.text(_MARGIN, 30, drawing.title, "title")
    _edges(drawing, plan, metrics, places)
    for (kind, number), (x, y) in places.items():
        name, below = _labels(plan, kind, number)
        look, radius = ("box", 6) if kind == "node" else ("end", _HEIGHT / 2)
        drawing.rect(x, y, _WIDTH, _HEIGHT, look, rx=radius, data={kind: name}, tooltip=f"{name}, {below}")
        drawing.text(x + _WIDTH / 2, y + 19, fit(name, _WIDTH - 8), "name", "middle")
        drawing.text(x + _WIDTH / 2, y + 35, fit(below, _WIDTH - 8), "small", "middle")
    return drawing.svg()


def _columns(plan: Plan) -> list[list[tuple[str, int]]]:
    """Assign columns: each stage is one column to the right of the last stage that feeds it."""
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


def _edges(
    drawing: Drawing, plan: Plan, metrics: Sequence[EdgeMetrics], places: dict[tuple[str, int], tuple[int, int]]
) -> None:
    labelled: dict[tuple[float, float], int] = {}
    for number, edge in enumerate(plan.edges):
        source = ("input", edge.output) if edge.source < 0 else ("node", edge.source)
        target = ("output", edge.input) if edge.target < 0 else ("node", edge.target)
        x1, y1 = places[source][0] + _WIDTH, places[source][1] + _HEIGHT / 2
        x2, y2 = places[target][0] - 7, places[target][1] + _port(plan, edge.target, edge.input)
        bend = _GAP_X / 2
        figures = metrics[number] if number < len(metrics) else None
        full = figures is not None and figures.depth >= figures.capacity
        names = {"source": _labels(plan, *source)[0], "target": _labels(plan, *target)[0]}
        look = "edge busy" if full else "edge"
        drawing.path(look, "M", x1, y1, "C", x1 + bend, y1, x2 - bend, y2, x2, y2, data=names)
        drawing.path("head", "M", x2 + 7, y2, "l -9 -4 v 8 z")
        if figures is not None:
            x, y = (x1 + x2) / 2, (y1 + y2) / 2
            shift = labelled.get((x, y), 0)
            labelled[x, y] = shift + 1
            lines = _figures(figures)
            for place, line in enumerate(lines):
                drawing.text(x, y - 8 - 13 * (len(lines) - 1 - place) + 34 * shift, line, "small", "middle")


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

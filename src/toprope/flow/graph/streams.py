"""Streams of results: which outputs of a graph carry several results of one input, and where such a stream ends; pure.

Placement tells each stage by it where to send an END, and the service which graphs stream. A generator function makes
several results of an input. In a graph that replies (`RunOptions.replies`) its stage sends an END after the last one,
and all stages after it pass that on. A generator after a generator makes the stream longer and ends nothing. Streams
of different generators have different lengths, so nothing can put them together. CANN has no such ends: the rules are
toprope's own, and `worker.loop` follows them. Tests: tests/flow/test_serve_parts.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from toprope.flow.exceptions import DfException
from toprope.flow.graph.nodes import Plan
from toprope.flow.stage.spec import StageSpec

__all__ = ["generators", "stream_ends"]

_Chain = tuple[tuple[int, str], ...]
"""The generators that a stream has passed: number of the node, and name of the function."""


def generators(plan: Plan) -> list[str]:
    """Names of the nodes with a function that makes several results of one input."""
    return [
        node.name for node in plan.nodes if any(each.generates for each in getattr(node.point, "functions", ()))
    ]  # fmt: skip


def stream_ends(plan: Plan, specs: Sequence[StageSpec]) -> list[frozenset[str]]:
    """For each node the functions that end a stream: the first generator on the way of an input.

    Raises:
        DfException: a stage, or the graph's outputs, would put streams of different lengths together.
    """
    chains: dict[tuple[int, int], _Chain] = {}
    sources = {(edge.target, edge.input): (edge.source, edge.output) for edge in plan.edges if edge.target >= 0}
    found: list[frozenset[str]] = []
    for number, (node, spec) in enumerate(zip(plan.nodes, specs, strict=True)):
        ends = set()
        for function in spec.functions:
            chain = _one([chains.get(sources[number, place], ()) for place in function.inputs], plan, node.name)
            if function.generates:
                if not chain:
                    ends.add(function.name)
                chain = (*chain, (number, function.name))
            for output in function.outputs:
                chains[number, output] = chain
        found.append(frozenset(ends))
    fetched = [(edge.source, edge.output) for edge in plan.edges if edge.target < 0]
    _one([chains.get(each, ()) for each in fetched], plan, "the graph")
    return found


def _one(chains: Sequence[_Chain], plan: Plan, where: str) -> _Chain:
    """The stream that all inputs belong to; none where there is no input."""
    different = sorted(set(chains))
    if len(different) > 1:
        names = [" -> ".join(plan.nodes[number].name for number, _ in each) or "no generator" for each in different]
        raise DfException(
            f"{where} puts results of different numbers together ({', '.join(names)}), so they belong to no request: "
            "use feed and fetch"
        )
    return different[0] if different else ()

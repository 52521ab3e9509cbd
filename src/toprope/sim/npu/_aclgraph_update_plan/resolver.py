"""Check of an update plan against the calls of a captured graph, and its translation for `NPUGraph.update`.

Part of torch.npu, for code that torch_npu's Inductor generates (compat/torch_npu/_inductor writes the entries). A plan
has one entry for each updatable call, in their order: `{"op": name, "updates": {argument: source}}`. A source is
`{"kind": "input", "index": n}` (an input of the compiled function), `{"kind": "constant", "value": v}`, `{"kind":
"none"}` or `{"kind": "list", "items": [source, ...]}`.

Source of the form: torch_npu/npu/_aclgraph_update_plan of Ascend/pytorch at 9e73e708. Tests:
tests/sim/simulated/test_graphs.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from toprope.sim.npu._npugraph_handlers.npugraph_handler import _NPU_GRAPH_OP_HANDLERS
from toprope.sim.npu._state import PARAMETER, message

__all__ = [
    "ACLGRAPH_UPDATE_PLAN_GLOBAL",
    "build_cpu_update_input_for_graph",
    "constant_source",
    "resolve_aclgraph_update_plan",
    "updatable",
    "update_aclgraph_records_for_graph",
    "validate_aclgraph_update_plan",
    "validate_aclgraph_update_plan_for_graph",
]

ACLGRAPH_UPDATE_PLAN_GLOBAL = "_torch_npu_aclgraph_update_plan"
"""Attribute of a compiled function that holds its plan."""

Plan = Sequence[dict[str, Any]]


def _error(text: str) -> RuntimeError:
    return RuntimeError(text, message("", PARAMETER))


def updatable(op_name: str) -> set[str]:
    """Names of the arguments of an operator that can be changed after a capture; none without a handler."""
    handler: Any = _NPU_GRAPH_OP_HANDLERS.get(op_name)
    if handler is None:
        return set()
    if hasattr(handler, "get_update_specs"):
        specs = handler.get_update_specs(op_name)
    else:
        specs = getattr(handler, "UPDATE_SPECS", {}).get(op_name, [])
    return {name for _, _, name in specs}


def constant_source(value: Any) -> dict[str, Any]:
    """Source of a value that no input of the compiled function gives.

    Raises:
        RuntimeError: a tensor, or a value that cannot be written into the compiled code.
    """
    if isinstance(value, torch.Tensor):
        raise _error("Unsupported ACLGraph update Tensor constant; Tensor update values must be graph inputs")
    if value is None:
        return {"kind": "none"}
    if isinstance(value, int | float | str):
        return {"kind": "constant", "value": value}
    raise _error(f"Unsupported ACLGraph update source: {value!r}")


def resolve_aclgraph_update_plan(plan: Plan, new_inputs: Sequence[Any]) -> list[dict[str, Any]]:
    """New arguments by name for each call, as `NPUGraph.update` takes them.

    Args:
        plan: checked, see `validate_aclgraph_update_plan`.
        new_inputs: of the compiled function.

    Raises:
        RuntimeError: an entry names an input that there is not, or has another form.
    """
    return [
        {
            name: _resolved(source, new_inputs, f"ACLGraph update plan entry {place} key {name}")
            for name, source in entry.get("updates", {}).items()
        }
        for place, entry in enumerate(plan or ())
    ]


def _resolved(source: Any, inputs: Sequence[Any], where: str) -> Any:
    kind = _kind(source, where)
    if kind == "input":
        if source["index"] >= len(inputs):
            raise _error(f"{where} input index {source['index']} is out of range for {len(inputs)} inputs")
        return inputs[source["index"]]
    if kind == "list":
        return [_resolved(item, inputs, where) for item in source["items"]]
    return source.get("value")


def _kind(source: Any, where: str) -> str:
    """Check a source itself, without those in its list."""
    if not isinstance(source, dict):
        raise _error(f"{where} has invalid source {source!r}")
    kind = str(source.get("kind"))
    if kind == "input" and not (isinstance(source.get("index"), int) and source["index"] >= 0):
        raise _error(f"{where} has invalid input index {source.get('index')}")
    if kind == "list" and not isinstance(source.get("items"), list):
        raise _error(f"{where} has invalid list source items {source.get('items')!r}")
    if kind not in ("input", "constant", "none", "list"):
        raise _error(f"{where} has unsupported source kind {source.get('kind')!r}")
    return kind


def _check(source: Any, where: str) -> None:
    kind = _kind(source, where)
    if kind == "list":
        for item in source["items"]:
            _check(item, where)
    elif kind == "constant":
        values = [source.get("value")]
        while values:
            value = values.pop()
            if isinstance(value, list | tuple):
                values.extend(value)
                continue
            try:
                constant_source(value)
            except RuntimeError as error:
                raise _error(f"{where} has unsupported constant value {source.get('value')!r}") from error


def _same_operator(first: str, second: str) -> bool:
    """Return True for two overloads of one operator, of which a capture may replace one by the other."""
    return len({name.removesuffix(".default").removesuffix(".out") for name in (first, second)}) == 1


def validate_aclgraph_update_plan(plan: Plan, graph_dispatch_records: Sequence[Any]) -> None:
    """Check that a plan fits the updatable calls that a graph captured.

    Raises:
        RuntimeError: the numbers, an operator or an argument differ, or an entry has another form.
    """
    plan, records = plan or (), graph_dispatch_records
    names = [record.op_cache_entry.__name__ for record in records]
    if records and not plan:
        raise _error(
            f"Captured updatable ACLGraph operators but missing ACLGraph update plan: {names}. This may be caused by"
            " reusing cached compiled code generated with ACLGraph disabled or by using the npugraphs backend, which"
            " does not support ACLGraph update plans yet."
        )
    if len(plan) != len(records):
        raise _error(
            f"ACLGraph update plan length mismatch: plan has {len(plan)} entries but graph captured {len(records)}"
            " updatable records"
        )
    for place, (entry, record, captured) in enumerate(zip(plan, records, names, strict=True)):
        if not isinstance(entry, dict):
            raise _error(f"ACLGraph update plan has invalid plan entry at index {place}: {entry!r}")
        invalid = f"ACLGraph update plan has invalid plan entry: entry {place}"
        expected, updates = entry.get("op"), entry.get("updates", {})
        if not isinstance(expected, str):
            raise _error(f"{invalid} op must be a string, got {expected!r}")
        if not _same_operator(expected, captured):
            raise _error(f"ACLGraph update plan op mismatch: entry {place} expects {expected!r}, captured {captured!r}")
        if not isinstance(updates, dict):
            raise _error(f"{invalid} updates must be a dict, got {updates!r}")
        if not updates:
            raise _error(f"ACLGraph update plan entry has no updates: entry {place}, op {captured!r}")
        if unknown := sorted({*updates} - {*getattr(record, "kwargs", {})} - updatable(captured)):
            raise _error(
                "ACLGraph update plan has key(s) that captured op cannot consume: "
                f"entry {place}, op {captured!r}, keys {unknown}"
            )
        for name, source in updates.items():
            _check(source, f"ACLGraph update plan entry {place} key {name}")


def build_cpu_update_input_for_graph(
    plan: Plan, new_inputs: Sequence[Any], graph_dispatch_records: Sequence[Any]
) -> list[dict[str, Any]]:
    """Check a plan, and read from it what `NPUGraph.update` takes."""
    validate_aclgraph_update_plan(plan, graph_dispatch_records)
    return resolve_aclgraph_update_plan(plan, new_inputs)


def validate_aclgraph_update_plan_for_graph(plan: Plan, graph: Any) -> None:
    """Check that a plan fits a graph; one that was captured without auto_dispatch_capture needs none."""
    if graph is not None and graph.auto_dispatch_capture:
        validate_aclgraph_update_plan(plan, graph.graph_dispatch_mode.graph_dispatch_records)


def update_aclgraph_records_for_graph(cpu_update_input: Sequence[dict[str, Any]], graph: Any) -> bool:
    """Update a graph's arguments on the host, and say whether there was something to update."""
    if graph is None or not graph.auto_dispatch_capture or not cpu_update_input:
        return False
    graph.update(cpu_update_input)
    return True

"""Facade module: entries of an update plan for the calls that Inductor lowers, as torch_npu's Inductor writes them.

A plan says how a captured graph gets new host arguments (toprope.sim.npu._aclgraph_update_plan). Inductor of the
simulated card captures no graphs, so nothing here calls it; programs do. Name, arguments and keys of an entry are
torch_npu's. Tests: tests/sim/simulated/test_graphs.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from toprope.compat.missing import missing_from
from toprope.sim.npu._aclgraph_update_plan.resolver import constant_source, updatable
from toprope.sim.npu._npugraph_handlers.npugraph_handler import _NPU_GRAPH_OP_HANDLERS

__all__ = ["build_aclgraph_update_plan_entry_for_inductor"]

__getattr__ = missing_from(__name__)

_WITHOUT_LENGTHS = ("npu_fusion_attention_v3", "npu_fusion_attention_grad_v3")
"""Operators that torch_npu does not update in the layout BNSD, which has no lengths of sequences."""


def build_aclgraph_update_plan_entry_for_inductor(
    op_overload: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    graph_input_names: Sequence[str],
    graph_inputs: dict[str, Any],
) -> dict[str, Any] | None:
    """Entry of a call; None where nothing of it can be updated.

    Args:
        op_overload: the operator.
        args: of the call: values, or nodes of Inductor.
        kwargs: of the call.
        graph_input_names: of the compiled function, in order.
        graph_inputs: those of them that are known, by name.

    Raises:
        RuntimeError: an argument that can be updated is a tensor, but no input.
    """
    name = getattr(op_overload, "__name__", str(op_overload))
    names = updatable(name)
    should_handle = getattr(_NPU_GRAPH_OP_HANDLERS.get(name), "should_handle", None)
    if not names or (should_handle is not None and not should_handle(op_overload, args, kwargs)):
        return None
    schema = getattr(op_overload, "_schema", None)
    given = dict(zip((each.name for each in schema.arguments), args, strict=False)) if schema else {}
    given |= {each.name: kwargs[each.name] for each in (schema.arguments if schema else ()) if each.name in kwargs}
    if name.partition(".")[0] in _WITHOUT_LENGTHS and given.get("input_layout") == "BNSD":
        return None
    inputs = [(each, graph_inputs.get(each)) for each in graph_input_names]
    updates = {each: _source(value, inputs) for each, value in given.items() if each in names}
    return {"op": name, "updates": updates} if updates else None


def _source(value: Any, inputs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    name, number = _name(value), _expression(value)
    for index, (each, kept) in enumerate(inputs):
        other = _expression(kept)
        equal = number is not None and other is not None and bool((number - other).simplify() == 0)
        if name == each or equal or (kept is not None and value is kept):
            return {"kind": "input", "index": index}
    if isinstance(value, list | tuple):
        return {"kind": "list", "items": [_source(item, inputs) for item in value]}
    return constant_source(value)


def _name(value: Any) -> str | None:
    """Name of a buffer of Inductor's, through the boxes and views around it."""
    while value is not None and not isinstance(value, torch.Tensor):
        try:
            return str(value.get_name())
        except (AttributeError, NotImplementedError):
            inside = getattr(value, "data", None)
            value = None if inside is value else inside
    return None


def _expression(value: Any) -> Any:
    """Sympy's expression of a number that is not known at compile time; None for all else."""
    found = value.node.expr if isinstance(value, torch.SymInt | torch.SymFloat) else value
    return found if hasattr(found, "as_coeff_Add") else None

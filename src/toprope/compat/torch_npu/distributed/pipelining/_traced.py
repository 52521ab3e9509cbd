"""Pipelines of modules that torch.fx traces: layers of torch and chosen submodules stay calls, the rest is opened.

Used by `torch_npu.distributed.pipelining.pipeline`. Which modules stay whole, and the errors, are those of
torch_npu/distributed/pipelining of Ascend/pytorch. The shapes between stages come from fake tensors, so that nothing is
computed and no process waits for another. Tests: tests/compat/test_torch_npu_pipelining.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.pipelining import Pipe, SplitPoint
from torch.distributed.pipelining._IR import aten_pipe_split_alias
from torch.export.unflatten import _assign_attr, _AttrKind
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.fx.passes.split_module import split_module
from torch.utils._pytree import tree_leaves

__all__ = ["traced_pipeline"]


def traced_pipeline(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    split_spec: Mapping[str, SplitPoint],
    split_policy: Callable[[fx.GraphModule], fx.GraphModule] | None,
    atomic_units: Collection[str],
) -> Pipe:
    """Split a module as `pipeline` says for its mode "fx".

    Raises:
        ValueError: torch_npu's, the arguments do not go with the module, or a name is not there.
    """
    traced, tensors = _trace(module, args, kwargs, atomic_units)
    with torch.no_grad():
        FakeTensorProp(traced, FakeTensorMode(allow_non_fake_inputs=True)).propagate(*tensors)
    for name, point in split_spec.items():
        _mark(traced.graph, str(name), point)
    traced.recompile()
    if split_policy is not None:
        traced = split_policy(traced)
    split = _split(module, traced)
    return Pipe(split, Pipe._number_and_count_forward_stages(split), has_loss_and_backward=False, loss_spec=None)


class _Tracer(fx.Tracer):
    """Keeps torch's modules and chosen submodules whole, and opens those that only hold others in a row."""

    def __init__(self, atomic_units: Collection[str]) -> None:
        super().__init__()
        self._atomic_units = atomic_units

    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        if module_qualified_name in self._atomic_units:
            return True
        if isinstance(m, torch.nn.Sequential):
            return False
        return m.__module__.startswith(("torch.nn", "torch.ao.nn")) or super().is_leaf_module(m, module_qualified_name)


def _trace(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], atomic_units: Collection[str]
) -> tuple[fx.GraphModule, list[Any]]:
    """Trace a module for these arguments.

    Returns:
        The traced module, whose only arguments are those that hold tensors; and these.
    """
    there = {name for name, _ in module.named_modules()}
    if missing := [name for name in atomic_units if name not in there]:
        raise ValueError(f"atomic_units contains module names that do not exist in the model: {', '.join(missing)}")
    try:
        bound = inspect.signature(module.forward).bind(*args, **kwargs)
    except TypeError as error:
        raise ValueError(f"Failed to bind example inputs to forward signature: {error}") from error
    bound.apply_defaults()
    tensors = {
        name: value
        for name, value in bound.arguments.items()
        if any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(value))
    }
    fixed = {name: value for name, value in bound.arguments.items() if name not in tensors}
    graph = _Tracer(atomic_units).trace(module, concrete_args=fixed)
    dropped = {node for node in graph.nodes if node.op == "placeholder" and node.target not in tensors}
    for node in graph.nodes:  # the values of `fixed` are in the graph already; what follows of an argument checks it
        if dropped.intersection(node.all_input_nodes):
            dropped.add(node)
    for node in reversed(list(graph.nodes)):
        if node in dropped:
            graph.erase_node(node)
    graph.set_codegen(fx.graph.CodeGen())
    return fx.GraphModule(module, graph), [tensors[node.target] for node in graph.nodes if node.op == "placeholder"]


def _mark(graph: fx.Graph, name: str, point: SplitPoint) -> None:
    """Put the mark of a new stage before or after a submodule."""
    calls = [
        node
        for node in graph.nodes
        if node.op == "call_module" and (node.target == name or str(node.target).startswith(f"{name}."))
    ]
    if not calls:
        raise ValueError(f"split_spec target '{name}' did not match any FX call_module node")
    if point not in (SplitPoint.BEGINNING, SplitPoint.END):
        raise ValueError(f"Unsupported split point for target '{name}': {point}")
    begins = point == SplitPoint.BEGINNING
    with graph.inserting_before(calls[0]) if begins else graph.inserting_after(calls[-1]):
        graph.call_function(aten_pipe_split_alias)


def _split(module: torch.nn.Module, traced: fx.GraphModule) -> fx.GraphModule:
    """Make a submodule of each stage, with the parameters and buffers that it uses."""
    stage = 0

    def stage_of(node: fx.Node) -> int:
        nonlocal stage
        stage += node.op == "call_function" and node.target is aten_pipe_split_alias
        return stage

    split = split_module(traced, module, stage_of, partition_affix="pp")
    for node in [node for node in split.graph.nodes if node.op == "get_attr"]:
        for call in list(node.users):
            _move_in(split, node, call)
        split.graph.erase_node(node)
    for child in split.children():
        if isinstance(child, fx.GraphModule):
            for node in list(child.graph.nodes):
                if node.op == "call_function" and node.target is aten_pipe_split_alias:
                    child.graph.erase_node(node)
            child.graph.lint()
            child.recompile()
    split.graph.lint()
    split.recompile()
    return split


def _move_in(split: fx.GraphModule, attribute: fx.Node, call: fx.Node) -> None:
    """Give a stage a parameter or buffer itself, in the place of an argument."""
    name, child = str(attribute.target), split.get_submodule(str(call.target))
    assert isinstance(child, fx.GraphModule)
    owner, _, last = name.rpartition(".")
    value = getattr(split.get_submodule(owner), last)
    kind = _AttrKind.PARAMETER if isinstance(value, torch.nn.Parameter) else _AttrKind.BUFFER
    _assign_attr(value, child, name, attr_kind=kind, persistent=True)
    placeholders = [node for node in child.graph.nodes if node.op == "placeholder"]
    for position in [at for at, each in enumerate(call.args) if each is attribute]:
        with child.graph.inserting_before(next(node for node in child.graph.nodes if node.op != "placeholder")):
            inside = child.graph.get_attr(name)
        inside.meta = dict(placeholders[position].meta)
        placeholders[position].replace_all_uses_with(inside)
        child.graph.erase_node(placeholders[position])
    call.args = tuple(each for each in call.args if each is not attribute)

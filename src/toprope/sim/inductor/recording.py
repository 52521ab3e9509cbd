"""Recording of Inductor's compiled functions into graphs of the card: `torch.compile(mode="reduce-overhead")`.

Used by host_graphs.py and npugraphs_backend.py; the graphs are toprope.sim.npu.graph_trees. Tests:
tests/sim/simulated/test_graph_trees.py.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx

__all__ = ["Recording", "also_for_card", "npugraphify", "reason_in_nodes", "wrapping_for_card"]


@dataclass
class Recording:
    """Facts about a compiled function that graph trees need.

    Attributes:
        reason: why it is not recorded; "" where it is.
        card: number of the card.
        kwargs: of Inductor's compile function: whether the function is a backward pass, which inputs stay where they
            are, and the like.
        placeholders: of its inputs, for messages.
        stack_traces: of its outputs, for messages.
        constants: tensors of the card that it refers to.
        inputs: of the first run, for policies.
    """

    reason: str
    card: int
    kwargs: dict[str, Any]
    placeholders: tuple[Any, ...]
    stack_traces: list[str | None]
    constants: tuple[torch.Tensor, ...]
    inputs: Sequence[Any]

    @classmethod
    def of(cls, gm: fx.GraphModule, card: torch.device, inputs: Sequence[Any], kwargs: dict[str, Any]) -> Recording:
        """Read it from a graph that is still the card's."""
        from torch._inductor.cudagraph_utils import get_placeholder_info

        (output,) = gm.graph.find_nodes(op="output")
        traces = output.meta.get("output_stack_traces") or [
            each.stack_trace if isinstance(each, fx.Node) else None for each in output.args[0]
        ]
        constants = [_attribute(gm, node.target) for node in gm.graph.find_nodes(op="get_attr")]
        return cls(
            _reason(gm, inputs),
            card.index or 0,
            kwargs,
            tuple(get_placeholder_info(gm.graph)),
            list(traces),
            tuple(each for each in constants if isinstance(each, torch.Tensor) and each.device.type == "npu"),
            inputs,
        )

    def wrapped(
        self, call: Callable[[list[Any]], Any], wanted: Any, written: Sequence[int], policy: Any = None
    ) -> Callable[..., Any]:
        """The function with the trees around it, or with what the program's policy puts around it.

        Args:
            call: the function.
            wanted: torch's box that says whether graphs are wanted, shared by both passes.
            written: places of the inputs that it changes.
            policy: `torch._inductor.config.cudagraph_policy`.
        """
        from torch._inductor.cudagraph_utils import log_cudagraph_skip_and_bump_counter
        from torch._inductor.utils import BoxedBool

        from toprope.sim.npu.graph_trees import trees

        forward = self.kwargs.get("boxed_forward_device_index")
        is_backward, is_inference = (bool(self.kwargs.get(name)) for name in ("is_backward", "is_inference"))
        if self.reason:
            BoxedBool.disable(wanted)
            log_cudagraph_skip_and_bump_counter(self.reason)
            manager = None
            if is_backward and forward is not None and forward.value is not None:
                manager = trees.get_manager(forward.value, create_if_none_exists=False)
            return call if manager is None else _after(manager.set_to_running_backward, call)
        if forward is not None and not is_inference and not is_backward:
            forward.set(self.card)
        static = self.kwargs.get("static_input_idxs") or ()
        facts: dict[str, Any] = {
            "device_index": self.card,
            "stack_traces": self.stack_traces,
            "is_backward": is_backward,
            "is_inference": is_inference,
            "constants": self.constants,
            "placeholders": self.placeholders,
            "mutated_input_idxs": tuple(written),
        }
        if policy is None:
            return npugraphify(call, static, **facts)
        with wrapping_for_card():
            made: Callable[..., Any] = policy.cudagraphify(call, self.inputs, static, **facts)
        return made


def npugraphify(model: Callable[..., Any], static_input_idxs: Sequence[int] = (), **facts: Any) -> Callable[..., Any]:
    """The function with the trees around it: its first call in a thread adds it to them.

    Args:
        model: takes a list of inputs, which it empties.
        static_input_idxs: places of the inputs that stay where they are.
        facts: the other arguments of torch's `cudagraphify`.
    """
    from toprope.sim.npu.graph_trees import trees

    compile_id = torch._guards.CompileContext.current_compile_id()
    made = threading.local()  # as the trees themselves

    def recorded(inputs: list[Any]) -> Any:
        if not hasattr(made, "function"):
            made.function = trees.npugraphify_impl(
                model, inputs, static_input_idxs=static_input_idxs, compile_id=compile_id, **facts
            )
        return made.function(inputs)

    return recorded


_wrapping = threading.local()
"""Has `depth` while a policy of the program wraps a function of the card."""


@contextlib.contextmanager
def wrapping_for_card() -> Iterator[None]:
    """Context in which torch's `cudagraphify` is the card's, for policies that call it."""
    _wrapping.depth = getattr(_wrapping, "depth", 0) + 1
    try:
        yield
    finally:
        _wrapping.depth -= 1


def also_for_card(cudagraphify: Callable[..., Any]) -> Callable[..., Any]:
    """Torch's `cudagraphify`, which records graphs of the card in the context of `wrapping_for_card`."""

    @functools.wraps(cudagraphify)
    def chosen(model: Callable[..., Any], static_input_idxs: Sequence[int] = (), **facts: Any) -> Callable[..., Any]:
        choice = npugraphify if getattr(_wrapping, "depth", 0) else cudagraphify
        return choice(model, static_input_idxs, **facts)

    return chosen


def _after(first: Callable[[], None], then: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    def call(inputs: list[Any]) -> Any:
        first()
        return then(inputs)

    return call


def _attribute(gm: Any, name: str) -> Any:
    return functools.reduce(getattr, name.split("."), gm)


def _reason(gm: fx.GraphModule, inputs: Sequence[Any]) -> str:
    """Reason for which a graph of the card cannot be recorded, in torch's words; "" where it can."""
    import torch._inductor.config as config
    from torch._inductor.cudagraph_utils import (
        format_default_skip_message,
        get_input_storage_mutation_info,
        get_input_storage_mutation_reason,
    )
    from torch._inductor.utils import any_is_symbolic

    if not config.triton.cudagraph_trees:
        return format_default_skip_message("torch._inductor.config.triton.cudagraph_trees = False")
    if reason := reason_in_nodes(gm):
        return reason
    if changed := get_input_storage_mutation_reason(get_input_storage_mutation_info(gm)):
        return format_default_skip_message(changed)
    if config.triton.cudagraph_skip_dynamic_graphs and any_is_symbolic(*inputs):
        text = "graph with symbolic shapes inputs and config.triton.cudagraph_skip_dynamic_graphs=True."
        return format_default_skip_message(text)
    return ""


def reason_in_nodes(gm: fx.GraphModule) -> str:
    """Reason in the nodes of a graph for which it cannot be recorded, in torch's words; "" where there is none.

    Args:
        gm: the graph, with values of the card in its nodes' `meta`.
    """
    import torch._inductor.config as config
    from torch._inductor.cudagraph_utils import check_multiple_devices_or_any_cpu_nodes, format_default_skip_message
    from torch._inductor.utils import get_first_incompatible_cudagraph_node

    with config.patch({"graph_partition": False}):  # the whole graph is recorded or nothing
        if reason := check_multiple_devices_or_any_cpu_nodes(_devices(gm)):
            return reason.replace("'cuda'", "'npu'")
        if node := get_first_incompatible_cudagraph_node(gm):
            trace = node.meta.get("stack_trace")
            found = f" Found from {trace}\n" if trace else ""
            return format_default_skip_message(f"incompatible op {node.target}{found}")
    return ""


def _devices(gm: fx.GraphModule) -> dict[torch.device, fx.Node]:
    """The first node on each device; the card is a CUDA device, the only one that torch's check takes."""
    found: dict[torch.device, fx.Node] = {}
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        for each in value if isinstance(value, list | tuple) else [value]:
            if isinstance(each, torch.Tensor):
                device = each.device
                found.setdefault(torch.device("cuda", device.index or 0) if device.type == "npu" else device, node)
    return found

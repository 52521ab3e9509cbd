"""Functions of Inductor that are recorded into graphs of the card: `torch.compile(mode="reduce-overhead")`."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx

__all__ = ["Recording"]


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
    """

    reason: str
    card: int
    kwargs: dict[str, Any]
    placeholders: tuple[Any, ...]
    stack_traces: list[str | None]
    constants: tuple[torch.Tensor, ...]

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
        )

    def wrapped(self, call: Callable[[list[Any]], Any], wanted: Any, written: Sequence[int]) -> Callable[..., Any]:
        """The function with the trees around it.

        Args:
            call: the function.
            wanted: torch's box, which says whether graphs are wanted; of both passes.
            written: places of the inputs that it changes.
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
        make: Callable[..., Any] = functools.partial(
            trees.npugraphify_impl,
            call,
            static_input_idxs=self.kwargs.get("static_input_idxs") or (),
            device_index=self.card,
            stack_traces=self.stack_traces,
            is_backward=is_backward,
            is_inference=is_inference,
            constants=self.constants,
            placeholders=self.placeholders,
            mutated_input_idxs=tuple(written),
            compile_id=torch._guards.CompileContext.current_compile_id(),
        )
        made = threading.local()  # as the trees themselves

        def recorded(inputs: list[Any]) -> Any:
            if not hasattr(made, "function"):
                made.function = make(inputs)
            return made.function(inputs)

        return recorded


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
        check_multiple_devices_or_any_cpu_nodes,
        format_default_skip_message,
        get_input_storage_mutation_info,
        get_input_storage_mutation_reason,
    )
    from torch._inductor.utils import any_is_symbolic, get_first_incompatible_cudagraph_node

    if not config.triton.cudagraph_trees:
        return format_default_skip_message("torch._inductor.config.triton.cudagraph_trees = False")
    with config.patch({"graph_partition": False}):  # the whole graph is recorded or nothing
        if reason := check_multiple_devices_or_any_cpu_nodes(_devices(gm)):
            return reason.replace("'cuda'", "'npu'")
        if node := get_first_incompatible_cudagraph_node(gm):
            trace = node.meta.get("stack_trace")
            found = f" Found from {trace}\n" if trace else ""
            return format_default_skip_message(f"incompatible op {node.target}{found}")
    if changed := get_input_storage_mutation_reason(get_input_storage_mutation_info(gm)):
        return format_default_skip_message(changed)
    if config.triton.cudagraph_skip_dynamic_graphs and any_is_symbolic(*inputs):
        text = "graph with symbolic shapes inputs and config.triton.cudagraph_skip_dynamic_graphs=True."
        return format_default_skip_message(text)
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

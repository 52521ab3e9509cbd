"""The backend "npugraphs" of torch.compile: traced operators run as they are, recorded into graphs of the card.

registration.py registers it; Inductor generates nothing for it. Source: `torch_npu/utils/_graph_tree.py`, which follows
the backend "cudagraphs" of torch (`torch/_dynamo/backends/cudagraphs.py`). Tests:
tests/sim/simulated/test_graph_trees.py.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch.fx as fx

__all__ = ["NpugraphsBackend", "npugraphs"]


class NpugraphsBackend:
    """Backend of torch.compile that records the operators of a function, and of its backward pass, into graphs.

    Attributes:
        compiler_name: by which torch.compile knows it.
    """

    compiler_name = "npugraphs"

    def __call__(self, module: fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
        """Compile a graph that TorchDynamo traced.

        Args:
            module: the graph.
            inputs: of its first run.
            options: of torch.compile, without effect, as on a card.
        """
        from torch._dynamo import config
        from torch._dynamo.backends.common import aot_autograd

        passes = _Passes(len(inputs))
        compiled: Callable[..., Any] = aot_autograd(
            fw_compiler=passes.forward,
            bw_compiler=passes.backward,
            inference_compiler=functools.partial(passes.forward, is_inference=True),
            keep_inference_input_mutations=config.cudagraph_backend_keep_input_mutation,
        )(module, inputs)
        return compiled

    @staticmethod
    def reset() -> None:
        """Drop all recorded graphs; torch.compiler.reset calls it."""
        trees = sys.modules.get("toprope.sim.npu.graph_trees.trees")
        if trees is not None:
            trees.reset_npugraph_trees()


npugraphs = NpugraphsBackend()


class _Passes:
    """Forward and backward pass of one function.

    Attributes:
        inputs: how many the program gives; before them are parameters, which stay where they are.
        card: of the forward pass; None where that is not recorded.
    """

    def __init__(self, inputs: int) -> None:
        self.inputs = inputs
        self.card: int | None = None

    def forward(self, traced: fx.GraphModule, inputs: list[Any], is_inference: bool = False) -> Callable[..., Any]:
        """Record the forward pass, where it can be."""
        from torch._dynamo.backends.debugging import boxed_nop
        from torch._inductor.cudagraph_utils import log_cudagraph_skip_and_bump_counter
        from torch._inductor.utils import num_fw_fixed_arguments

        call = boxed_nop(traced, inputs)
        fixed = num_fw_fixed_arguments(self.inputs, len(inputs))
        if reason := _reason(traced, fixed):
            log_cudagraph_skip_and_bump_counter(reason)
            return call
        self.card = _card(traced)
        return _recorded(call, traced, inputs, fixed, card=self.card, is_backward=False, is_inference=is_inference)

    def backward(self, traced: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        """Record the backward pass, where it and the forward pass can be."""
        from torch._dynamo.backends.debugging import boxed_nop
        from torch._inductor.cudagraph_utils import log_cudagraph_skip_and_bump_counter
        from torch._inductor.utils import count_tangents

        from toprope.sim.npu.graph_trees import trees

        call = boxed_nop(traced, inputs)
        if self.card is None:
            return call
        fixed = count_tangents(traced)
        reason = _reason(traced, fixed)
        if not reason:
            card = _card(traced)
            return _recorded(call, traced, inputs, fixed, card=card, is_backward=True, is_inference=False)
        log_cudagraph_skip_and_bump_counter(reason)
        manager = trees.get_manager(self.card, create_if_none_exists=False)
        if manager is None:
            return call

        def run(mine: list[Any]) -> Any:
            manager.set_to_running_backward()
            return call(mine)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run


def _recorded(
    call: Callable[..., Any],
    traced: fx.GraphModule,
    inputs: list[Any],
    fixed: int,
    *,
    card: int,
    is_backward: bool,
    is_inference: bool,
) -> Callable[..., Any]:
    """The function with the trees around it.

    Args:
        call: the function.
        traced: its graph.
        inputs: of its first run.
        fixed: how many of the first inputs stay where they are.
        card: number of the card.
        is_backward: whether it is a backward pass.
        is_inference: whether none follows.
    """
    from torch._dynamo.backends.cudagraphs import find_input_mutations, get_stack_traces
    from torch._inductor.cudagraph_utils import get_placeholder_info

    from toprope.sim.npu.graph_trees import trees

    made: Callable[..., Any] = trees.npugraphify_impl(
        call,
        inputs,
        range(fixed),
        device_index=card,
        is_backward=is_backward,
        is_inference=is_inference,
        stack_traces=get_stack_traces(traced),
        placeholders=get_placeholder_info(traced.graph),
        mutated_input_idxs=find_input_mutations(traced.graph),
    )
    made._boxed_call = True  # type: ignore[attr-defined]
    return made


def _reason(traced: fx.GraphModule, fixed: int) -> str:
    """Reason for which a graph is not recorded, in torch's words; "" where it can be."""
    from torch._dynamo import config
    from torch._dynamo.backends.cudagraphs import check_for_mutation_ignore_cuda_graph_managed_tensor

    from toprope.sim.inductor.recording import reason_in_nodes

    if not config.cudagraph_backend_support_input_mutation:
        changed = check_for_mutation_ignore_cuda_graph_managed_tensor(traced, fixed)
        if changed:
            return str(changed)
    return reason_in_nodes(traced)


def _card(traced: fx.GraphModule) -> int:
    from torch._dynamo.backends.cudagraphs import get_device_node_mapping

    return next(device.index or 0 for device in get_device_node_mapping(traced) if device.type == "npu")

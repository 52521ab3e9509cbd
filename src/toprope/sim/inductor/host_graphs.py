"""Inductor's graphs for the card, compiled as graphs of the host that work on the card's own bytes.

registration.py switches it on. The generated kernels read and write the card's memory without a copy. They say nothing
about the code that a real card would run. The operators `toprope_sim` that it calls are those of
csrc/torch/ops_memory.cpp and ops_frequent.cpp. Tests: tests/sim/simulated/test_inductor.py.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.fx as fx
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager
from torch.utils._pytree import tree_map

from toprope.sim.composites import Kernel, is_recorded
from toprope.sim.inductor.recording import Recording, also_for_card, wrapping_for_card
from toprope.sim.npu.graph_capture import current
from toprope.sim.tracing.records import GENERATED

__all__ = ["register"]

_running = threading.local()
"""Has `card` where this thread runs a graph of the card."""


def register() -> None:
    """Have Inductor compile graphs of the card as graphs of the host, over the card's own bytes.

    Inductor chooses between its C++ and its Triton code in many places, by the type of a node's device. A graph that
    is the host's when it gets there needs none of these choices to know the card.
    """
    import torch._functorch.config
    import torch._inductor.compile_fx as compile_fx
    from torch._inductor.codegen.common import register_backend_for_device
    from torch._inductor.codegen.cpp import CppScheduling
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen

    # Decompositions ask for its features before a graph is the host's; it generates nothing for npu.
    register_backend_for_device("npu", CppScheduling, PythonWrapperCodegen)
    compile_inner = compile_fx._compile_fx_inner

    @functools.wraps(compile_inner)
    def compile_for_card(gm: Any, example_inputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        graph = _Graph.of(gm)
        if graph is None:
            return compile_inner(gm, example_inputs, *args, **kwargs)
        return graph.compiled(functools.partial(compile_inner, *args), kwargs, example_inputs)

    compile_fx._compile_fx_inner = compile_for_card
    compile_fx.cudagraphify = also_for_card(compile_fx.cudagraphify)
    _use_products_of_card()
    # It keeps compiled graphs between processes without what is added here.
    torch._functorch.config.enable_autograd_cache = False


def _use_products_of_card() -> None:
    """Have graphs of the card multiply matrices as the card does: half precision is added up in float32."""
    import torch._inductor.kernel.bmm
    import torch._inductor.kernel.mm
    from torch._inductor.select_algorithm import extern_kernels

    def made(name: str, of_host: Callable[..., Any], of_card: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(of_host)
        def kernel(*args: Any, out: Any = None, **kwargs: Any) -> Any:
            if out is None or getattr(_running, "card", None) is None:
                return of_host(*args, out=out, **kwargs)
            result = of_card(*args, out=out, **kwargs)
            if is_recorded():
                Kernel(f"aten::{name}", _running.card.index or 0, args).record([out])
            return result

        return kernel

    for name in ("mm", "addmm", "bmm", "baddbmm"):
        of_card = getattr(torch.ops.toprope_sim, name)
        setattr(extern_kernels, name, made(name, getattr(extern_kernels, name), of_card))


class _Graph:
    """Graph of the card that is made one of the host, and called with the card's tensors.

    Attributes:
        gm: the graph, changed in place.
        outputs: of each output that is a tensor of the card its device, else None.
        seeds: how many seeds each of the placeholders takes that were added for random operators.
        operands: operands of the card's kernels whose dtypes are checked before the first run.
    """

    def __init__(self, gm: Any, card: torch.device) -> None:
        (output,) = gm.graph.find_nodes(op="output")
        self.gm, self.card = gm, card
        self.outputs = [_device(node) for node in output.args[0]]
        self.seeds: list[int] = []
        self.operands = list(dict.fromkeys(_operands_of_kernels(gm)))
        self._known: dict[int, Any] = {}

    @classmethod
    def of(cls, gm: Any) -> _Graph | None:
        """The graph; None where it computes nothing, or nothing on the card."""
        computes = any(node.op not in ("placeholder", "get_attr", "output") for node in gm.graph.nodes)
        cards = (card for node in gm.graph.nodes if (card := _device(node)) is not None)
        card = next(cards, None) if computes else None
        return None if card is None else cls(gm, card)

    def compiled(self, compile_inner: Callable[..., Any], kwargs: dict[str, Any], example_inputs: Sequence[Any]) -> Any:
        """The function that Inductor made of the graph, for tensors of the card.

        Args:
            compile_inner: compiles a graph of the host.
            kwargs: for it. Where they ask for graphs of the card, the function is recorded into one.
            example_inputs: of the graph.
        """
        import torch._inductor.config as config
        from torch._dynamo.utils import counters
        from torch._inductor.utils import BoxedBool

        wanted = kwargs.get("cudagraphs")
        wanted = BoxedBool(config.triton.cudagraphs) if wanted is None else wanted
        policy = getattr(config, "cudagraph_policy", None)
        recording = Recording.of(self.gm, self.card, example_inputs, kwargs) if wanted else None
        self._convert(self.gm)
        extra = self._seeds_as_inputs()
        self.gm.recompile()
        # a policy of the program sees the function of the card, not the host's
        without = {"triton.cudagraphs": False} | ({} if policy is None else {"cudagraph_policy": None})
        with config.patch(without):
            function = compile_inner(
                self.gm, [*map(self._host, example_inputs), *extra], **{**kwargs, "cudagraphs": BoxedBool(False)}
            )
        of_host = function if policy is None else getattr(function, "current_callable", function)
        self._known.clear()  # the examples can be tensors of the program
        written = set(getattr(function, "mutated_input_idxs", ()))

        def run(inputs: list[Any]) -> list[Any]:
            mine = [*inputs, *(self._draw(count) for count in self.seeds)]
            inputs.clear()
            return self._call(of_host, mine)

        def call(inputs: list[Any]) -> list[Any]:
            capture = current()
            if capture is None:
                return run(inputs)
            mine = [*inputs]
            inputs.clear()
            return capture.add_compiled(run, mine, written)

        if policy is not None and not policy.should_wrap(function):
            counters["inductor"]["cudagraph_skips"] += 1
            BoxedBool.disable(wanted)
            recording = None
        made: Any = call if recording is None else recording.wrapped(call, wanted, sorted(written), policy)
        made._boxed_call = True
        return made if policy is None else self._wrapped_output(policy, function, made)

    def _wrapped_output(self, policy: Any, function: Any, made: Callable[..., Any]) -> Any:
        """Result of Inductor that calls the card's function, after a policy of the program wrapped it."""
        from torch.utils._ordered_set import OrderedSet

        if not hasattr(function, "device_types"):  # compiled ahead of time
            return made
        function.current_callable = made
        function.device_types, function.device_idxs = OrderedSet(["npu"]), OrderedSet([self.card.index or 0])
        with wrapping_for_card():
            return policy.wrap_output(function)

    def _call(self, function: Any, inputs: list[Any]) -> list[Any]:
        ops = torch.ops.toprope_sim
        for operand in self.operands:
            ops.check_operand(*operand)
        self.operands.clear()
        # A view keeps the bytes, not the tensor, and the function drops it after its last use: so does eager mode.
        inputs[:] = [ops.host_view(each) if _is_of_card(each) else each for each in inputs]
        scope = ops.enter_kernel(self.card.index or 0)
        before, _running.card = getattr(_running, "card", None), self.card
        try:
            generated = Kernel(GENERATED, self.card.index or 0, inputs) if is_recorded() else None
            results = list(function(inputs))
            if generated is not None:  # no more is known of them than what they read and write together
                generated.record(results)
            of_card = [place for place, device in enumerate(self.outputs) if device is not None]
            moved = ops.onto_card([results[place] for place in of_card], self.card.index or 0)
        finally:
            _running.card = before
            ops.leave_kernel(scope)
        for place, tensor in zip(of_card, moved, strict=True):
            device = self.outputs[place]
            results[place] = tensor if tensor.device == device else tensor.to(device)
        # a copy to the host that Inductor left out, since for it both are the host
        return [each.clone() if isinstance(each, torch.Tensor) and ops.is_host_view(each) else each for each in results]

    def _draw(self, count: int) -> torch.Tensor:
        """Seeds from the card's generator."""
        limits = torch.iinfo(torch.int64)
        return torch.randint(limits.min, limits.max, (count,), device=self.card, dtype=torch.int64)

    def _seeds_as_inputs(self) -> list[Any]:
        """Replace the nodes that draw seeds by placeholders, so that the card's generator draws them."""
        added: list[Any] = []
        graph = self.gm.graph
        last = graph.find_nodes(op="placeholder")
        for node in graph.find_nodes(op="call_function", target=torch.ops.prims.inductor_seeds.default):
            with graph.inserting_after(last[-1]) if last else graph.inserting_before(next(iter(graph.nodes))):
                placeholder = graph.placeholder(f"seeds_{len(added)}")
            placeholder.meta = dict(node.meta)
            node.replace_all_uses_with(placeholder)
            graph.erase_node(node)
            last = [placeholder]
            self.seeds.append(int(node.args[0]))
            added.append(placeholder.meta["val"])
        return added

    def _convert(self, gm: Any) -> None:
        """Make every device of a graph and of its inner graphs the host."""
        for node in gm.graph.nodes:
            if node.op == "get_attr":
                self._convert_attribute(gm, node.target)
            node.args = fx.node.map_aggregate(node.args, _host_device)
            node.kwargs = fx.node.map_aggregate(node.kwargs, _host_device)
            for key in ("val", "example_value", "eager_input_vals"):
                if key in node.meta:
                    node.meta[key] = tree_map(self._host, node.meta[key])

    def _convert_attribute(self, gm: Any, name: str) -> None:
        owner = gm.get_submodule(name.rpartition(".")[0])
        name = name.rpartition(".")[2]
        value = getattr(owner, name)
        if isinstance(value, fx.GraphModule):
            self._convert(value)
            value.recompile()
        elif _is_of_card(value):
            delattr(owner, name)
            setattr(owner, name, self._host(value))

    def _host(self, value: Any) -> Any:
        """The same tensor on the host; other values as they are."""
        if not _is_of_card(value):
            return value
        if id(value) not in self._known:
            self._known[id(value)] = value, _fake_host(value) if isinstance(value, FakeTensor) else _host_view(value)
        return self._known[id(value)][1]


def _operands_of_kernels(gm: fx.GraphModule) -> Iterator[tuple[str, int, torch.dtype]]:
    """Operands of the operators that Inductor calls as they are: operator, position in its schema, dtype.

    On a card these calls reach CANN's kernels, which refuse dtypes; of the others Inductor makes kernels of its own.
    """
    from torch._inductor.lowering import fallbacks

    aten = torch.ops.aten
    called = {aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default, *fallbacks}
    for module in gm.modules():
        nodes = module.graph.nodes if isinstance(module, fx.GraphModule) else ()
        for node in (node for node in nodes if node.op == "call_function" and node.target in called):
            for position, argument in enumerate(node.target._schema.arguments):
                value = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
                for each in value if isinstance(value, list | tuple) else [value]:
                    if _device(each) is not None:
                        yield node.target.name(), position, each.meta["val"].dtype


def _device(node: fx.Node | Any) -> torch.device | None:
    """The card that the tensor of a node is on; None if it is on none."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    values = [value] if isinstance(value, torch.Tensor) else value if isinstance(value, list | tuple) else []
    found = (each.device for each in values if isinstance(each, torch.Tensor) and each.device.type == "npu")
    return next(found, None)


def _is_of_card(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "npu"


def _host_device(value: Any) -> Any:
    return torch.device("cpu") if isinstance(value, torch.device) and value.type == "npu" else value


def _host_view(tensor: torch.Tensor) -> torch.Tensor:
    view: torch.Tensor = torch.ops.toprope_sim.host_view(tensor.detach())
    return view


def _fake_host(tensor: FakeTensor) -> FakeTensor:
    """The same fake tensor, of the same storage, on the host."""
    with in_kernel_invocation_manager(tensor.fake_mode):
        return FakeTensor(tensor.fake_mode, tensor, torch.device("cpu"))

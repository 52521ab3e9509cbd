"""Backend of torch.compile for the simulated card (`torchair.get_npu_backend`, "npu"): graphs with scopes.

torch.compile calls it with each traced graph; it checks the options and hands the graph to aclgraph.py or ge.py. Tests:
tests/sim/simulated/test_graph.py.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.fx import GraphModule

from toprope.errors import InstallError, UnsupportedError
from toprope.sim.air.operators import name_streams
from toprope.sim.graph.aclgraph import AclGraph
from toprope.sim.graph.compiled import CompiledGraph
from toprope.sim.graph.config import CompilerConfig
from toprope.sim.graph.ge import GeGraph
from toprope.sim.graph.graph_breaks import lone_mark
from toprope.sim.state import installed

__all__ = ["NpuBackend", "get_npu_backend"]


class NpuBackend:
    """A backend of torch.compile.

    Args:
        config: how to compile.
        decompositions: of operators; it has none of its own.

    Attributes:
        graphs: what was compiled with it, in that order.
    """

    __name__ = "npu"

    def __init__(self, config: CompilerConfig, decompositions: Mapping[Any, Callable[..., Any]]) -> None:
        self.config = config
        self.graphs: list[CompiledGraph] = []
        self._decompositions = dict(decompositions)

    def __call__(self, module: GraphModule, inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
        """Compiles a graph that TorchDynamo traced."""
        from torch._functorch._aot_autograd.utils import make_boxed_func
        from torch._functorch.aot_autograd import aot_module_simplified
        from torch._functorch.partitioners import default_partition

        config = self.config
        if options.get("options"):
            config = copy.deepcopy(config)
            config.set(options["options"])
        if config.experimental_config.aot_config_enable_joint_graph:
            raise UnsupportedError(
                "experimental_config.aot_config_enable_joint_graph is not there on the simulated card.",
                do="leave it at False: forward and backward pass are compiled as graphs of their own",
            )
        if config.dump_config.enable_dump:
            text = "dump_config.enable_dump has no effect on the simulated card: nothing is dumped."
            warnings.warn(text, stacklevel=2)
        name_streams(module.graph)
        broken = lone_mark(module.graph)
        if broken is not None:
            return broken

        def compiler(phase: str) -> Any:
            def compile_graph(traced: GraphModule, examples: Sequence[Any]) -> Any:
                for custom in (config.post_grad_custom_pre_pass.value, config.post_grad_custom_post_pass.value):
                    if custom is not None:
                        custom(traced, examples, config)
                kind = GeGraph if config.mode.value == "max-autotune" else AclGraph
                graph = kind(traced, phase, config)
                self.graphs.append(graph)
                return make_boxed_func(graph)

            return compile_graph

        return aot_module_simplified(
            module,
            inputs,
            fw_compiler=compiler("forward"),
            bw_compiler=compiler("backward"),
            inference_compiler=compiler("inference"),
            partition_fn=default_partition,
            decompositions=self._decompositions,
            keep_inference_input_mutations=bool(config.experimental_config.keep_inference_input_mutations),
        )


def get_npu_backend(
    *,
    compiler_config: CompilerConfig | None = None,
    custom_decompositions: Mapping[Any, Callable[..., Any]] = {},
) -> NpuBackend:
    """The backend for `torch.compile(..., backend=...)`.

    Args:
        compiler_config: how to compile; None for torchair's defaults, mode "max-autotune".
        custom_decompositions: operators to be taken apart, as torch.compile's backends take them.

    Raises:
        InstallError: this process has no simulated card.
    """
    if installed() is None:
        raise InstallError(
            "torchair compiles for a card, and this process has no simulated one.",
            do="run the program with `toprope run --chip 910B3 PROGRAM`",
        )
    config = CompilerConfig() if compiler_config is None else compiler_config
    if config.mode.value == "reduce-overhead":
        if config.ge_config.aicore_num.value is not None:
            warnings.warn("ge_config.aicore_num has no effect in mode reduce-overhead.", stacklevel=2)
        warnings.warn(
            "torchair's mode reduce-overhead is deprecated in torch_npu 2.13; the backend npugraph_ex takes its place.",
            DeprecationWarning,
            stacklevel=2,
        )
    return NpuBackend(config, custom_decompositions)

"""torchair's capture mode (mode "reduce-overhead", backend "npugraph_ex"): a captured graph keeps its core limits.

backend.py picks it. The limits are those of the stream at the first call; ge.py is the other mode. Tests:
tests/sim/simulated/test_graph.py.
"""

from __future__ import annotations

import logging
import warnings
from contextlib import ExitStack
from typing import Any

import torch
from torch.fx import GraphModule

from toprope.sim.air import scopes
from toprope.sim.graph import lowering, runtime
from toprope.sim.graph.cann import at_least
from toprope.sim.graph.compiled import CompiledGraph
from toprope.sim.graph.config import CompilerConfig

__all__ = ["AclGraph"]

_log = logging.getLogger("torchair")

_Limits = dict[str, int]
_Key = tuple[Any, ...]


class AclGraph(CompiledGraph):
    """A graph that is captured at its first call, with the limits that the current stream has then.

    A call under other limits of the current stream captures again. Nothing else of a capture is simulated: the
    operators run one by one at every call, under the limits of the capture.

    Attributes:
        static_kernel: whether static kernels are in force besides the limits.
    """

    def __init__(self, module: GraphModule, phase: str, config: CompilerConfig) -> None:
        super().__init__(module, phase, config)
        self.lowered = lowering.by_stream(module)
        self.static_kernel = self._static_kernel()
        self._captures: dict[_Key, dict[str, _Limits]] = {}

    def _static_kernel(self) -> bool:
        option = self.config.experimental_config.aclgraph._aclnn_static_shape_kernel
        if not option or at_least(9) or not any(each.attributes.keys() >= scopes.CORE_LIMIT for each in self.nodes):
            return bool(option)
        self.config.experimental_config.aclgraph._aclnn_static_shape_kernel = False
        warnings.warn(
            "When both static shape kernel and core limit are enabled, only core limit will take effect, static shape"
            " kernel will be disabled. CANN 9.0.0 or later supports enabling both features.",
            stacklevel=2,
        )
        return False

    def __call__(self, *arguments: Any) -> Any:
        """Captures where there is no capture that fits, and runs."""
        if self.config.debug.run_eagerly:
            return self._run(arguments)
        key = _key(arguments)
        if not self._fits(key):
            self._capture(key)
        return self.replay(*arguments)

    def replay(self, *arguments: Any) -> Any:
        """Run what was captured for inputs like these, whatever the limits are now.

        Raises:
            KeyError: nothing was captured for such inputs.
        """
        with ExitStack() as afterwards:
            for label, numbers in self._captures[_key(arguments)].items():
                stream = runtime.stream_of_label(label) if label else runtime.current()
                afterwards.enter_context(runtime.held(stream, numbers))
            return self._run(arguments)

    def _fits(self, key: _Key) -> bool:
        from torch._dynamo.utils import counters

        captured = self._captures.get(key)
        if captured is None:
            return False
        if captured[""] == runtime.limits_of(runtime.current()):
            return True
        counters["npugraph_ex"][f"recapture_due_to_global_limit_core_change_{self.name}"] += 1
        _log.debug("The current AclGraph needs to be recaptured for fx_graph %s with graph key {%s}.", self.name, key)
        return False

    def _capture(self, key: _Key) -> None:
        from torch._dynamo.utils import counters

        streams = {"": runtime.current()} | {label: runtime.stream_of_label(label) for label in self._labels}
        self._captures[key] = {label: runtime.limits_of(stream) for label, stream in streams.items()}
        counters["npugraph_ex"][f"captured_{self.name}"] = len(self._captures)


def _key(arguments: tuple[Any, ...]) -> _Key:
    """The key of a capture: shapes, and numbers given as arguments."""
    return tuple(tuple(each.shape) if isinstance(each, torch.Tensor) else each for each in arguments)

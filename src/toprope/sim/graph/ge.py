"""torchair's graph engine mode ("max-autotune"): core limits of operators, read as the graph engine (GE) reads them.

backend.py picks it; aclgraph.py is the other mode. Tests: tests/sim/simulated/test_graph.py.
"""

from __future__ import annotations

import os
import time
import warnings
from typing import Any

from torch.fx import GraphModule
from torch.fx.node import Node

from toprope.sim.air import scopes
from toprope.sim.graph import lowering
from toprope.sim.graph.cann import at_least
from toprope.sim.graph.compiled import CompiledGraph
from toprope.sim.graph.config import CompilerConfig
from toprope.sim.graph.core_numbers import OPTION, CoreNumberError, Cores, from_option, number
from toprope.sim.npu._state import chip, message

__all__ = ["GeGraph"]

_INTERNAL = "ERR03005 GRAPH internal error"


class GeGraph(CompiledGraph):
    """A graph that is built at its first call, when its options and attributes are checked.

    Attributes:
        limits: what each operator is limited to, by its name, once the graph is built.
    """

    def __init__(self, module: GraphModule, phase: str, config: CompilerConfig) -> None:
        super().__init__(module, phase, config)
        self.limits: dict[str, Cores] = {}
        cores = config.ge_config.aicore_num.value
        if cores is not None:
            self.options[OPTION] = cores

    def __call__(self, *arguments: Any) -> Any:
        """Build the graph where that was not done yet, and run it.

        Raises:
            RuntimeError: E10001, an option or attribute is no number of cores that the chip has.
        """
        if self.lowered is None:
            limits = self._build()
            self.limits = {node.name: cores for node, cores in limits.items()}
            self.lowered = lowering.by_operator(self.module, limits)
        return self._run(arguments)

    def _build(self) -> dict[Node, Cores]:
        most = Cores(chip().cube_cores or 0, chip().vector_cores or 0)
        try:
            all_of_them, warning = from_option(self.options.get(OPTION, ""), most, clamps=not at_least(9))
            found = {
                node: _limits_of(operator.attributes, most, all_of_them) for node, operator in self._operators.items()
            }
        except CoreNumberError as error:
            when = time.strftime("%Y-%m-%d-%H:%M:%S")
            text = f"E10001: [PID: {os.getpid()}] {when} {error}\n        Solution: Try again with a valid argument."
            raise RuntimeError(message(text, _INTERNAL)) from None
        if warning:
            warnings.warn(warning, stacklevel=2)
        return found


def _limits_of(attributes: Any, most: Cores, all_of_them: Cores) -> Cores:
    """An operator's own limits, and the whole graph's where it has none."""
    cube = number(scopes.AICORE, attributes.get(scopes.AICORE, "0"), most.cube or 0)
    vector = number(scopes.VECTORCORE, attributes.get(scopes.VECTORCORE, "0"), most.vector or 0)
    return Cores(cube or all_of_them.cube, vector or all_of_them.vector)

"""Step marks of graph trees: where a program says that an iteration begins.

Apart from graph_trees, so that marking a step does not load Inductor. Used by graph_trees/trees.py and by
toprope.sim.inductor. Tests: tests/sim/simulated/test_graph_trees.py.
"""

from __future__ import annotations

__all__ = ["MarkStepBox", "mark_step_begin", "npugraph_mark_step_begin"]


class MarkStepBox:
    """Counter of the steps that the program marked.

    Attributes:
        mark_step_counter: goes down, so that it differs from the generations of torch.compile, which go up.
    """

    mark_step_counter = 0


def mark_step_begin() -> None:
    """Mark that an iteration of inference or training begins: results of graphs from before may be overwritten."""
    MarkStepBox.mark_step_counter -= 1


def npugraph_mark_step_begin() -> None:
    """Mark the same, under the name that `torch.compiler` has."""
    mark_step_begin()

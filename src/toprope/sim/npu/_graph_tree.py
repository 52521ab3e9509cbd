"""Module `torch_npu.npu._graph_tree`, torch_npu's name of graph_trees.

Loaded when a program asks for it: it imports Inductor, which takes seconds. Tests:
tests/sim/simulated/test_graph_trees.py.
"""

import sys

from toprope.sim.npu.graph_trees import trees

sys.modules[__name__] = trees

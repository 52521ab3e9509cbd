"""torch_npu's name of the module of graph trees, loaded when a program asks for it: Inductor takes seconds."""

import sys

from toprope.sim.npu.graph_trees import trees

sys.modules[__name__] = trees

"""Package `torch_npu.npu._npugraph_handlers`: see npugraph_handler, its one module.

Tests: tests/sim/simulated/test_graphs.py.
"""

"""Facade package `torch_npu._inductor._aclgraph_update_plan`: see `codegen`, its one module.

Tests: tests/sim/simulated/test_graphs.py.
"""

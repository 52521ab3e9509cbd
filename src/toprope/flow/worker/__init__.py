"""A process of a graph: the loops of its functions, how they take their inputs, and how they are called.

Internal to `toprope.flow`; `executor.processes` starts one for each process of a graph. Tests:
tests/flow/test_flow_run.py, tests/flow/test_serve_graph.py.
"""

__all__: list[str] = []

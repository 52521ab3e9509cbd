"""A running graph in the program: placement of its processes, feeding, fetching, faults, and its end.

Internal to `toprope.flow`, behind `FlowGraph`; its counterpart in the processes of stages is `flow.worker`. Tests:
tests/flow/test_flow_run.py, tests/flow/test_serve_graph.py.
"""

__all__: list[str] = []

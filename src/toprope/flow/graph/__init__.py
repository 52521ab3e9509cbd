"""A graph as data: nodes and their wiring, streams, options, settings, and the deploy file.

Behind the public names of `toprope.flow`; nothing runs here. Tests: tests/flow/test_flow_graph.py.
"""

__all__: list[str] = []

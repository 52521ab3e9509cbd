"""The UDF interface: functions that see messages, with their metadata, queues and output routing.

For users, as `dataflow.flow_func`; names and codes are those of CANN's dataflow API. `flow.points` makes stages of
such functions. Tests: tests/flow/test_flow_func.py, tests/flow/test_flow_balance.py.
"""

__all__: list[str] = []

"""Facts about the values in a file that rules ask for: devices, receivers of calls, tensors.

Called by `port.rules` and `port.conditions`; they read the tree of one file and `port.project.facts`. Tests:
tests/port/test_port_receivers.py.
"""

__all__: list[str] = []

"""Values and messages between processes: serialization, shared memory, and the socket protocol.

Shared by the local backend and `toprope.flow`; it knows nothing of sessions, calls or graphs. Tests:
tests/functions/test_functions_wire.py, tests/functions/test_functions_arena.py.
"""

__all__: list[str] = []

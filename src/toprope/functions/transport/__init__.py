"""Values and messages between processes: serialization, shared memory, and the socket protocol.

Shared by the local backend and `toprope.flow`; it knows nothing of sessions, calls or graphs.
"""

__all__: list[str] = []

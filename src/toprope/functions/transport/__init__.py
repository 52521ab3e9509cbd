"""Values and messages between processes: serialization, shared memory, and the socket protocol."""

__all__: list[str] = []

"""Values and messages between processes: serialization, shared memory, and the socket protocol."""

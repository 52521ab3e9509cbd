"""Places that hold bytes, and the threads that move them: the memory of a device and the host, files, spill files."""

__all__: list[str] = []

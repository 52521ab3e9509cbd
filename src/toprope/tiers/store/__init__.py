"""Stores of bytes (memory of devices and host, files, spill files), and the threads that move bytes between them."""

__all__: list[str] = []

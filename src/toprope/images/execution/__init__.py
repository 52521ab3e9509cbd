"""Execution on a device: dtype, attention, operators that run on the host, checks of results."""

__all__: list[str] = []

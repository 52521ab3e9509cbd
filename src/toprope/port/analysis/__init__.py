"""Facts about the values in a file that rules ask for: devices, receivers of calls, tensors."""

__all__: list[str] = []

"""The operators that a model would call, recorded on meta tensors: shapes, memory, quantised weights."""

__all__: list[str] = []

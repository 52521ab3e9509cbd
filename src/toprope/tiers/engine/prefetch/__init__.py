"""Prefetch of weight groups into device memory, in the order of their use."""

__all__: list[str] = []

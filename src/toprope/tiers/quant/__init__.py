"""Weights in 4 or 8 bits: formats, codec, matrix products and layers."""

__all__: list[str] = []

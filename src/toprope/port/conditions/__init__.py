"""Conditions on CUDA and on devices: what they guard, and whether their answer may change."""

__all__: list[str] = []

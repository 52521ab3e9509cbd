"""Checks for `toprope doctor --images`."""

__all__: list[str] = []

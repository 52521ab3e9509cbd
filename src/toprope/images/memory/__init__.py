"""The memory ladder: rungs from everything on the device to weights that are streamed, and their placements."""

__all__: list[str] = []

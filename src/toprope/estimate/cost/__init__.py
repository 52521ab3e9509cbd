"""Cost of operator calls: operations and bytes, a chip's speed, and a timeline of host and streams."""

__all__: list[str] = []

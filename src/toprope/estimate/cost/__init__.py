"""What calls take: operations and bytes, how fast a chip does them, and when on a timeline of host and streams."""

__all__: list[str] = []

"""Limits for streams: the search for the fastest ones that are safe, and the times that it rests on."""

__all__: list[str] = []

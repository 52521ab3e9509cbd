"""Runs of many edits: their jobs, their folder of results, and the cards they are spread over."""

__all__: list[str] = []

"""Runs an attached model: weights are prefetched before their modules run, and released after them."""

__all__: list[str] = []

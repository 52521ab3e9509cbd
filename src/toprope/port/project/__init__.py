"""Facts about the whole project that one file depends on: its folders, classes, re-exports, scripted code."""

__all__: list[str] = []

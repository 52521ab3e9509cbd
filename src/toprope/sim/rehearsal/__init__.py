"""Rehearsal: recording of a run, its facts, and the deviation of its modules from float32."""

__all__: list[str] = []

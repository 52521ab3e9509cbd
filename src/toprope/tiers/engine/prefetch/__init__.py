"""Prefetch of weight groups into device memory, in the order of their use.

Internal to `tiers.engine`; `engine.runtime` calls it around each module.
"""

__all__: list[str] = []

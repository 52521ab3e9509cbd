"""The model that is attached: its groups of weights and the files that they come from.

Internal to `tiers.engine`; `attach` calls it before anything runs.
"""

__all__: list[str] = []

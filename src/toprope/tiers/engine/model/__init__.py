"""The model that is attached: its groups of weights and the files that they come from.

Internal to `tiers.engine`; `attach` calls it before anything runs. Tests: tests/tiers/test_tiers_pieces.py (groups),
tests/tiers/test_tiers_files.py (files).
"""

__all__: list[str] = []

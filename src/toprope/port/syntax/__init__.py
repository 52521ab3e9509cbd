"""Text and syntax of one file or notebook: source, scopes, edits; knows no rules.

Used by everything else in `port`, and imports nothing of it.
"""

__all__: list[str] = []

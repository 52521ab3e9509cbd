"""Text and syntax of one file or notebook: source, scopes, edits; knows no rules."""

__all__: list[str] = []

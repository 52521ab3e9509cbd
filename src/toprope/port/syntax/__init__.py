"""Text and syntax of one file or notebook: source, scopes, edits; knows no rules.

Used by everything else in `port`, and imports nothing of it. Tests: tests/port/test_port_engine.py.
"""

__all__: list[str] = []

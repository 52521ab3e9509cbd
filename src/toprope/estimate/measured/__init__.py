"""Rates fitted to a card's own profiles, and a program that compares a card with toprope's tables.

Tests: tests/estimate/test_profile_reading.py.
"""

__all__: list[str] = []

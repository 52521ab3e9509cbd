"""Rates fitted to a card's own profiles, and a program that compares a card with toprope's tables.

Behind `toprope calibrate` (`calibrate`, `fitting`, `stored`) and `toprope verify` (`verification`, `verify_card`).
Tests: tests/estimate/test_profile_reading.py, tests/estimate/test_calibrate.py, tests/estimate/test_stored_rates.py.
"""

__all__: list[str] = []

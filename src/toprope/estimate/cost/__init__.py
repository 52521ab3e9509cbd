"""Cost of operator calls: operations and bytes, a chip's speed, and a timeline of host and streams.

Tests: tests/estimate/test_ranking.py, tests/estimate/test_timeline.py.
"""

__all__: list[str] = []

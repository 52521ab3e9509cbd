"""The operators that a model would call, recorded on meta tensors: shapes, memory, quantised weights.

Tests: tests/estimate/test_paper.py.
"""

__all__: list[str] = []

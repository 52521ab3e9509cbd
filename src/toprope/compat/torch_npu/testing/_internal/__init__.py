"""Facade package: base classes for torch's own distributed tests on cards, under torch_npu's names.

Tests: tests/compat/test_torch_npu_testing.py.
"""

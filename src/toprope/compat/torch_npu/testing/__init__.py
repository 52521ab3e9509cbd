"""Facade package `torch_npu.testing`: helpers of tests. Importing it has torch's own test suite choose the card.

`instantiate_device_type_tests` of torch then makes tests for npu only, those marked `onlyCUDA` run there, and the
process group `fake` takes tensors on a card. The lists of tests that torch_npu skips and the dtypes that it adds to
torch's operator tests are not here. Tests: tests/compat/test_torch_npu_testing.py.
"""

from toprope.compat.missing import missing_from

from ._suite import choose_card

__all__: list[str] = []

choose_card()

__getattr__ = missing_from(__name__)

"""Facade package: base classes for torch's own distributed tests on cards, under torch_npu's names."""

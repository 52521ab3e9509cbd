"""Operators of torch that each release of torch_npu has a kernel for, read from the vendor's repositories.

Run by hand as `python scripts/operator_support` (`__main__`) for each new release of the vendor.
"""

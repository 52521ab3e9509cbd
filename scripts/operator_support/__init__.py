"""Operators of torch that each release of torch_npu has a kernel for, read from the vendor's repositories."""

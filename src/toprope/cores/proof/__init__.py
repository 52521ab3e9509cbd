"""Proofs: sums that make a program safe, and exact tests for whether it can get stuck."""

__all__: list[str] = []

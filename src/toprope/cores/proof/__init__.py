"""Proofs: sums that make a program safe, and exact tests for whether it can get stuck.

Internal: `cores.check` calls them one after the other. docs/core_proof.md has the theorems; code and page change
together. Tests: tests/cores/test_cores_bounds.py (sums), tests/cores/test_cores_exact.py (exact tests).
"""

__all__: list[str] = []

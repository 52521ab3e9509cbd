"""Diagnosis for `toprope doctor` and `toprope devices`: collect facts, then reason about them."""

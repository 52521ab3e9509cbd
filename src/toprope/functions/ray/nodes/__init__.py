"""Nodes of a Ray cluster: their resources and labels, and how the ledger sees them."""

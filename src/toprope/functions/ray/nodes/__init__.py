"""Nodes of a Ray cluster: their resources and labels, and their view as a ledger."""

"""Metrics, traces and drawings of a running graph."""

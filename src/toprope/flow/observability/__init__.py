"""Figures, traces and pictures of a running graph."""

"""Runs of other libraries' own tests on the CPU and on the simulated card: which end differently, and why."""

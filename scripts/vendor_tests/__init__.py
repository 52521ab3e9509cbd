"""Runs of the vendor's own tests on the simulated card: what passes, what does not, what is left out and why."""

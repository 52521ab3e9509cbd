"""Scheduler of a local session, with its instance groups and resource groups."""

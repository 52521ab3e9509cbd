"""Scheduling on top of Ray: queues of requests, instance groups and resource groups."""

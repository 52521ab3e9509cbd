"""A graph as data: nodes and their wiring, options, settings, the deploy file; pure."""

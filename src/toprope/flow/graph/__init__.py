"""A graph as data: nodes and their wiring, streams, options, settings, and the deploy file."""

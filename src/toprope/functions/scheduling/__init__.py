"""Placement of requests on nodes: resource grammar, ledger, bundles, strategies, affinities; pure."""

"""Placement of requests on nodes: resource grammar, ledger, bundles, strategies, affinities; pure.

Shared by both backends, which do the waiting and starting. Rules and messages are openYuanrong's. Tests:
tests/functions/test_functions_ledger.py, tests/functions/test_functions_groups.py,
tests/functions/test_functions_resources.py.
"""

__all__: list[str] = []

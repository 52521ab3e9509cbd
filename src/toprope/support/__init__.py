"""Data on what the card supports, each row with its source: operators by release, refused dtypes, kinds of operators.

One TOML file and one module that reads it for each table; modules import no torch. Read by toprope.sim, toprope.port,
toprope.cores, toprope.estimate and cli. A new row is data alone (docs/adding.md). Tests:
tests/support/test_operators_on_card.py, tests/support/test_refusals.py, tests/support/test_operator_kinds.py.
"""

__all__: list[str] = []

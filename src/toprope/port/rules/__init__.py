"""The rules, one file for each family; every file has a `FAMILY`, and is found by being here.

The number of a rule is its code: row 12 is TR012, with the page docs/port/TR012.md and its advice in
port/advice.toml. How to add one: docs/adding.md. Tests: tests/port/test_port_rules.py.
"""

__all__: list[str] = []

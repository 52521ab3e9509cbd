"""The rules, one file for each family; every file has a `FAMILY`, and is found by being here."""

__all__: list[str] = []

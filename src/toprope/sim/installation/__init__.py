"""Installation of the simulated cards into the torch of this process; installer.py is the entry."""

__all__: list[str] = []

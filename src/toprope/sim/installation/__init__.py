"""Installation of the simulated cards into the torch of this process."""

__all__: list[str] = []

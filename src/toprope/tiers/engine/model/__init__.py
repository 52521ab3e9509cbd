"""The model that is attached: its groups of weights and the files that they come from."""

__all__: list[str] = []

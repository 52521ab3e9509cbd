"""torch.compile on the simulated card."""

__all__: list[str] = []
